"""Bytes that weights and their optimizer take. No torch: `groupwise check` plans with them."""

NF4_BLOCK = 64
"""Weights that share a scale in nf4."""
NF4_BYTES = 0.5 + (1 + 4 / 256) / NF4_BLOCK
"""Of a weight: 4 bits, and its part of a scale in 8 bits, which shares its own with 255 others."""
GRADIENT_BYTES = MASTER_BYTES = 4
"""In fp32, whatever the policy's precision."""
MOMENT_BYTES = {"adamw": 8, "adamw_8bit": 2}
"""Of both of AdamW's moments of a weight."""
