"""Several processes as one run: who is there (world.py), how they are found, how they start.

This package knows processes and bytes, nothing of models. How weights are split over ranks is in
training/shards.py (FSDP2) and training/zero.py (DeepSpeed).
"""
