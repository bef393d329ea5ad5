"""Sizes that decide how much memory sampling takes. No torch: `groupwise check` plans with them."""

PREFILL_TOKENS = 8192
"""Prompt tokens that go through the model at once."""
MULTI_STEP = 8
"""Decode steps between two synchronisations with the host; tokens past an end are dropped."""
CACHE_SHARE = 0.8
"""Share of the free memory that the KV cache may take."""
