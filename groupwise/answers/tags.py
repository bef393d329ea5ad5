"""Reading tags such as `<answer>55</answer>` out of model output.

Model output is hostile, so there is no regular expression here: every function is a handful of
linear scans. A tag that is repeated counts as absent, since a model that writes two answers has
not decided on one.
"""

OPENINGS = ("Let me solve this step by step.", "Let me think through this step by step.")
"""Sentences that recipes put at the start of every answer, before its form begins."""


def tag_content(text: str, tag: str) -> str | None:
    """What stands between the only `<tag>` and the only `</tag>`; None if absent or repeated.

    tag_content("<think>2+2=4</think>", "think") == "2+2=4"
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start = text.index(opening) + len(opening)
    end = text.index(closing)
    return text[start:end] if start <= end else None


def think_answer_format(completion: str) -> bool:
    """Whether the text is `<think>…</think>` and then `<answer>…</answer>`, and nothing else.

    Whitespace around and between the two is fine; an empty `<think></think>` is too.
    """
    return two_part_format(completion, "think", "answer")


def two_part_format(text: str, first: str, second: str) -> bool:
    """Whether the text is one `<first>` pair and then one `<second>` pair, and nothing else but one
    of OPENINGS before them."""
    text = text.strip()
    opening = next((known for known in OPENINGS if text.startswith(known)), "")
    text = text.removeprefix(opening).lstrip()
    if tag_content(text, first) is None or tag_content(text, second) is None:
        return False
    before, _, after = text.partition(f"</{first}>")
    opens = before.startswith(f"<{first}>") and after.lstrip().startswith(f"<{second}>")
    return opens and after.endswith(f"</{second}>")


def not_blank(completion: str) -> bool:
    """The form of an answer where no prompt asks for an <answer> tag: any text at all."""
    return bool(completion.strip())
