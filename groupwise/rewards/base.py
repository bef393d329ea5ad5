"""Rewards as values. Interface only; being filled in."""
