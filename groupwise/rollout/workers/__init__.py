"""Sampling in processes of its own: workers that hold the policy, and the trainer's side of them.

order.py     what is asked of a worker (requests) and what it answers, as safetensors bytes
weights.py   weights as a stream of safetensors bytes, one tensor in memory at a time
marks.py     whether a worker has the run's model
holder.py    what a worker has: a policy, its engine, whose weights at which version
app.py       the HTTP endpoints; command.py runs them until stopped
worker.py    one worker, asked over HTTP; local.py starts those of this machine
engine.py    several workers as the engine of a run
"""
