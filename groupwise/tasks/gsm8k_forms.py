"""The forms in which a GSM8K answer is asked for and judged: `task.answer_format`.

Each says how to ask for it, what a worked example looks like, and when an answer has it. `tags` is
ours, `hashes` is the dataset's own, `reasoning` is The LM Book's, `working_out` the HF cookbook's.
Whatever the form, a right answer in another usual one counts as right, though not as formatted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from groupwise.answers.final import canonical_answer, correct, same_answer
from groupwise.answers.quantities import extract_number
from groupwise.answers.tags import tag_content, think_answer_format, two_part_format
from groupwise.rewards.cookbook import exact_format


def hashes_formatted(completion: str) -> bool:
    """Whether an answer ends with its only `####`, a number behind it on the same line."""
    reasoning, marker, final = completion.rstrip().rpartition("####")
    alone = bool(marker) and "####" not in reasoning and "\n" not in final.strip()
    return alone and bool(reasoning.strip()) and extract_number(final.strip()) is not None


def reasoning_formatted(completion: str) -> bool:
    """Whether an answer is <reasoning>...</reasoning><answer>...</answer> and nothing else."""
    return two_part_format(completion, "reasoning", "answer")


def working_out_formatted(completion: str) -> bool:
    """Whether an answer has the cookbook's whole form and nothing else."""
    return exact_format(completion) > 0


def working_out_correct(completion: str, answer: str) -> bool:
    """Whether the solution, where there is one, or else the text's final answer is right."""
    if "<SOLUTION>" in completion and "</SOLUTION>" in completion:
        return same_answer(tag_content(completion, "SOLUTION") or "", answer)
    return correct(completion, answer)


def working_out_extract(completion: str) -> str | None:
    return canonical_answer(tag_content(completion, "SOLUTION") or completion)


@dataclass(frozen=True)
class Form:
    """`example` is a worked answer, with {reasoning} and {final} to be filled in."""

    system: str
    example: str
    formatted: Callable[..., Any]
    correct: Callable[..., Any] = correct
    extract: Callable[[str], str | None] = canonical_answer


FORMS = {
    "tags": Form(
        "You solve math word problems. Think step by step between <think> and </think>, "
        "then give the final number alone between <answer> and </answer>.",
        "<think>{reasoning}</think>\n<answer>{final}</answer>",
        think_answer_format,
    ),
    "hashes": Form(
        "You solve math word problems. Reason step by step, "
        "then end with a line that holds #### and the final number.",
        "{reasoning}\n#### {final}",
        hashes_formatted,
    ),
    "reasoning": Form(
        "You solve math word problems. Reason between <reasoning> and </reasoning>, "
        "then give the final number alone between <answer> and </answer>.",
        "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{final}\n</answer>",
        reasoning_formatted,
    ),
    "working_out": Form(
        "You solve math word problems. Work between <start_working_out> and <end_working_out>, "
        "then give the final number alone between <SOLUTION> and </SOLUTION>.",
        "<start_working_out>\n{reasoning}\n<end_working_out>\n<SOLUTION>{final}</SOLUTION>",
        working_out_formatted,
        working_out_correct,
        working_out_extract,
    ),
}
