"""Stop strings, found in decoded text and mapped back to tokens: a string may span several."""

from collections.abc import Sequence
from typing import Any

from groupwise.policy.tokenizing import text_of


class StopStrings:
    """StopStrings(("\\n",), tokenizer).first_end([11, 198, 12]) == 2: token 198 completes it."""

    def __init__(self, strings: Sequence[str], tokenizer: Any) -> None:
        self.strings = tuple(string for string in strings if string)
        self.tokenizer = tokenizer
        # Enough tokens to hold a stop string: a token decodes to at least one byte, and a character
        # has at most four.
        self.max_tokens = max((4 * len(string) for string in self.strings), default=0) + 1

    def just_ended(self, tokens: Sequence[int]) -> bool:
        """Whether the newest token completed a stop string."""
        return self._contains_stop(tokens[-self.max_tokens :])

    def first_end(self, tokens: Sequence[int]) -> int | None:
        """How many tokens there are up to and with the one that first completes a stop string."""
        if not self.strings or not self._contains_stop(tokens):
            return None
        ends = range(1, len(tokens) + 1)
        return next((end for end in ends if self.just_ended(tokens[:end])), None)

    def _contains_stop(self, tokens: Sequence[int]) -> bool:
        text = text_of(self.tokenizer, tokens, skip_special_tokens=True)
        return any(string in text for string in self.strings)
