"""One GRPO step with every number, and the same step under another objective.

Nothing is derived anew here: `numbers.py` calls the functions that training calls, on the log-probs
that training used, and takes their gradient.
"""
