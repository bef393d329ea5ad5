"""How many logits exist at once. No torch: `groupwise check` plans with them."""

CHUNK_LOGITS = 2**27
"""On a GPU: 256 MB in bf16, and as much again for their gradient."""
CPU_CHUNK_LOGITS = 2**27
"""A CPU has more memory for its speed, so there recomputing them begins later."""
