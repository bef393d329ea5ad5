"""Length as a reward: pure functions of token counts."""


def overlong_penalty(tokens: int, limit: int, buffer: int) -> float:
    """DAPO's soft punishment: 0 up to `limit - buffer` tokens, then linear down to -1 at `limit`.

    overlong_penalty(95, limit=100, buffer=10) == -0.5
    """
    assert 0 < buffer <= limit, (buffer, limit)
    return -min(max(tokens - (limit - buffer), 0) / buffer, 1.0)
