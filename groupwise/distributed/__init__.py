"""Several processes as one run: its ranks (world.py), how they join it, how they are started.

This package knows processes and bytes, nothing of models. How weights are split over ranks is in
training/shards.py (FSDP2) and training/zero.py (DeepSpeed).
"""
