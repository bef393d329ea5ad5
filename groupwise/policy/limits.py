"""How many logits exist at once. No torch: `groupwise check` plans with them."""

CHUNK_LOGITS = 2**27
"""On a GPU: 256 MB in bf16, and as much again for their gradient."""
CPU_CHUNK_LOGITS = 2**27
"""A CPU has more memory for its speed, so there recomputing them begins later."""
LARGE_MEMORY = 40 * 2**30
"""A GPU with more memory than this has larger chunks and keeps some of its logits."""
LARGE_CHUNK_LOGITS = 2**29
KEPT_SHARE = 1 / 32
"""Of a large memory: logits that are kept for the backward pass instead of being computed again."""


def chunk_logits(memory: float | None) -> int:
    """How many are computed together, on a GPU of so many bytes; None: a CPU."""
    if memory is None:
        return CPU_CHUNK_LOGITS
    return LARGE_CHUNK_LOGITS if memory > LARGE_MEMORY else CHUNK_LOGITS


def kept_logits(memory: float | None, each: int, head_trains: bool) -> int:
    """How many are kept, of `each` bytes. 0 where the head is frozen: memory matters then."""
    if memory is None or memory <= LARGE_MEMORY or not head_trains:
        return 0
    return int(KEPT_SHARE * memory / each)
