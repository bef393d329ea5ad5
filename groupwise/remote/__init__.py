"""Models in other processes, over HTTP: the reference server, sampling workers, and vLLM.

What all of them stand on:
event_loop.py   one event loop in a thread, for all clients of a process
client.py       one server: token, time-outs, bounded replies, error texts
pool.py         several servers: work goes to who is free, one that fails is left out for a while
local_servers.py        servers that the trainer starts and ends
guard.py        what every server does before it reads a body: token, caps, deadlines
server.py       a Starlette app behind the guard, with /metrics and /health
running.py      where a server listens, deadlines of its connections, how it stops
model_loop.py   one thread that owns the model, and a bounded queue before it
payload.py      tensors as safetensors bytes, small ones whole and weights as a stream
fingerprint.py  whether a server holds the model that we think

remote_engine.py  published_weights.py  sparse_weights.py       engines elsewhere, and their weights
reference_payload.py  reference_server.py  reference_client.py
worker_payload.py  worker_server.py  worker_model.py  worker_client.py
vllm_payload.py  vllm_client.py  vllm_servers.py  vllm_colocated.py
vllm_command.py  vllm_middleware.py  vllm_worker_extension.py   inside vLLM's own processes
"""
