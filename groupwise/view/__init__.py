"""The run viewer: a local, read-only web page over run folders. Imports no torch.

It reads what tracking/run.py writes and nothing else, a page at a time. Everything in a run folder
is hostile until shown: files may be damaged, huge or made by somebody else.
"""
