"""Rewards that fail. A file of their own: the worker process imports it, and no torch with it."""


def hang(completion: str) -> float:
    while True:
        pass


def fail(completion: str) -> float:
    raise KeyError("oops")
