"""How much is sent at once between processes. No torch: `groupwise check` plans with it."""

ZERO_BUCKET = 500_000_000
"""Numbers that DeepSpeed sends together: gradients that are reduced, weights that are gathered."""
