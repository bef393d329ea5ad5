"""Reading tags such as `<answer>55</answer>` out of model output.

Model output is hostile, so there is no regular expression here: every function is a handful of
linear scans. A tag that is repeated counts as absent, since a model that writes two answers has
not decided on one.
"""


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


def think_answer_format(text: str) -> bool:
    """Whether the text is `<think>…</think>` and then `<answer>…</answer>`, and nothing else.

    Whitespace around and between the two is fine; an empty `<think></think>` is too.
    """
    text = text.strip()
    if tag_content(text, "think") is None or tag_content(text, "answer") is None:
        return False
    thought, _, answer = text.partition("</think>")
    return (
        thought.startswith("<think>")
        and answer.lstrip().startswith("<answer>")
        and answer.endswith("</answer>")
    )
