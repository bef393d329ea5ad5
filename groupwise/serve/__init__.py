"""The reference model in processes of its own: a server of log-probs, and the trainer's side.

wire.py       a question (groups) and its answer (log-probs) as safetensors bytes
identity.py   whether a server's model is the one that a run started from
worker.py     one thread that owns the model, and a bounded queue before it
app.py        the HTTP endpoints; command.py runs them until stopped
client.py     one server, asked over HTTP
reference.py  several servers as the reference of a run
"""
