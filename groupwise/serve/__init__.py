"""Models in processes of their own: what servers share, and the reference server.

endpoints.py     HTTP manners: token, bounded bodies, refusals, metrics; running.py runs a server
model_thread.py  one thread that owns the model, and a bounded queue before it
client.py        a server asked over HTTP; links.py spreads work over several
identity.py      whether a server's model is the one that a run started from

wire.py          a question (groups) and its answer (log-probs) as safetensors bytes
worker.py app.py command.py   the reference server
scoring_server.py reference.py   the trainer's side of it

Workers that sample answers are in groupwise/rollout/workers.
"""
