"""vLLM as the engine: in the trainer's process, or in servers that weights are pushed to.

engine.py     which of the two a recipe asks for
wire.py       a question and its answer, as vLLM's token endpoint has them
weights.py    the policy's weights, or its adapter alone, as a file to send
endpoints.py  what is added to `vllm serve`: a token on every path, and a place to put weights
worker_extension.py  what is added to vLLM's workers: loading them to the last copy
command.py    `groupwise serve vllm`: the flags and variables that `vllm serve` needs
server.py     one server, asked over HTTP
servers.py    several servers as the engine of a run
colocated.py  vLLM in this process

Nothing here imports vLLM at the top, and those two files nothing of groupwise: the trainer of a run
with servers needs no vLLM, and the server none of our dependencies.
"""
