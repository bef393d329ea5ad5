"""How many logits exist at once. No torch: `groupwise check` plans with them."""

CHUNK_LOGITS = 2**26
"""On a GPU: 256 MB in float32, and a small multiple of it in the backward pass."""
CPU_CHUNK_LOGITS = 2**27
"""A CPU has more memory for its speed, so there recomputing them begins later."""
