"""The loop and what it needs; `groupwise.train(config)` is training/api.py."""
