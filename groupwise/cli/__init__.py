"""The command line: one thin function per command. torch is imported only where it is used.

Exit codes: 0 finished; 2 the user can fix it (one message, no traceback); 3 stopped by a signal,
with a checkpoint saved where something was learned; 1 a bug of ours, with its traceback.
"""
