"""Exceptions that one thread raises in another, which `threading` does not offer."""

import ctypes
import threading


def raise_in(thread: threading.Thread, kind: type[BaseException]) -> None:
    """Have a running thread raise `kind` at its next step in Python."""
    if thread.ident is not None:
        ident, error = ctypes.c_ulong(thread.ident), ctypes.py_object(kind)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)
