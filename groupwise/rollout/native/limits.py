"""Sizes that decide how much memory sampling takes. No torch: `groupwise check` plans with them."""

PREFILL_TOKENS = 8192
"""Prompt tokens that go through the model at once."""
MULTI_STEP = 8
"""Decode steps that are launched together; tokens past an answer's end are dropped."""
ADMIT_EVERY = 32
"""Decode steps between two prefills while answers run, on CUDA: a prefill holds all of them up."""
ADMIT_SHARE = 0.25
"""As many answers as this share of those that run do not wait for it."""
CACHE_SHARE = 0.8
"""Share of the free memory that the KV cache may take."""
CHUNK_BYTES = 2**28
"""The KV cache grows by so much at a time."""
PAGE = {"cuda": 32, "cpu": 256}
"""Tokens of a page of the KV cache. Pages that answers share are whole ones."""
