"""Make the second embedded model, `groupwise/policy/tiny_tools`: python scripts/make_tiny_tools.py

A Llama of 0.2 M parameters that knows conversations: it can call a tool and read what the tool
says, and it can narrow down a number by what it is told; a quarter of an hour on one core. It is a
start for GRPO, not a good model: as the other embedded model does, it has habits, most of them bad.

    guess_number   <think>20-52</think><answer>36</answer>   knows the bounds, and halves them
                   <answer>23</answer>                       a number near the lower bound
                   The number is 23.                         a form that nobody asked for
    calculator     <tool_call>{"name": "calculate", ...      asks the tool, and repeats its result
                   <answer>5391</answer>                     makes a result up
                   a call that cannot be read, or an answer beside what the tool said

It was never taught to calculate: without the tool it has no way to a right sum. No problem of a
held-out split is trained on.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import torch
from embedded_model import (
    POLICY,
    Row,
    Vocabulary,
    make_model,
    make_tokenizer,
    options,
    save,
    warm_up,
)
from transformers.utils import logging

from groupwise.config.tasks import ArithmeticTask, GuessNumberTask
from groupwise.environments.calculator import calculate
from groupwise.tasks import arithmetic, guess_number
from groupwise.tasks.base import split_of
from groupwise.types import Problem

CHAT_TEMPLATE = """{{- bos_token -}}
{%- if tools -%}
{{- "<|system|>Tools:" -}}
{%- for tool in tools -%}
{{- " " + tool.function.name + "(" + tool.function.parameters.properties | join(", ") + ")" -}}
{%- endfor -%}
{{- eos_token -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role not in ["system", "user", "assistant", "tool"] -%}
{{- raise_exception("unknown role " + message.role) -}}
{%- endif -%}
{{- "<|" + message.role + "|>" + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' -}}
{{- (call.function.arguments | tojson) + "}</tool_call>" -}}
{%- endfor -%}
{{- eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|assistant|>" -}}{%- endif -%}
"""

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
VOCABULARY = Vocabulary(
    special=("<|pad|>", "<|bos|>", "<|end|>", *ROLES),
    tags=("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>"),
    isolated=r"[0-9]{1,2}|[+\-*/=()?.,\n]",  # digits go in pairs, which are easy to copy
    size=560,
    chat_template=CHAT_TEMPLATE,
)
GUESSING = GuessNumberTask()
SUMS = (ArithmeticTask(digits=4), ArithmeticTask(digits=3), ArithmeticTask(digits=4, steps=1))
GUESSES = 8
SLIPS = 0.2


# The corpus.


def guessing_row(random: Random, share: float) -> Row:
    """A whole game: careful from the first turn to the last with the probability `share`, else
    hardly ever. So what is learned in one turn carries over to the next.

    Some turns of a careful game are slips, which are read and not learned: so a game can go on
    after bounds or a guess that were not exact."""
    careful = 1.0 if random.random() < share else 0.05
    while split_of((problem := guess_number.draw_problem(random, GUESSING)).id) != "train":
        pass
    low, high, number = problem.columns["low"], problem.columns["high"], problem.columns["answer"]
    row, start, prompt = [], low, _chat(problem)
    for _ in range(GUESSES):
        learned = True
        if random.random() >= careful:
            turn, guess = _careless(start, random)
        elif random.random() >= SLIPS:
            turn, guess = _halving(low, high)
        else:
            turn, guess = _slip(low, high, int(number), random)
            learned = False
        if learned:
            row += [prompt, f"{turn}<|end|>"]
            prompt = ""
        else:
            prompt += f"{turn}<|end|>"
        if guess == int(number):
            break
        said = "guess a number" if guess is None else "lower" if guess > int(number) else "higher"
        if guess is not None:
            low, high = (low, min(high, guess)) if said == "lower" else (max(low, guess), high)
        prompt += f"<|user|>{said}<|end|><|assistant|>"
    return row


def _halving(low: int, high: int) -> tuple[str, int]:
    guess = (low + high) // 2
    return f"<think>{low}-{high}</think><answer>{guess}</answer>", guess


def _slip(low: int, high: int, number: int, random: Random) -> tuple[str, int]:
    """Bounds and a wrong guess that are nearly those of a halving."""
    low, high = (max(bound + random.choice((-1, 0, 0, 0, 1)), 0) for bound in (low, high))
    guess = number
    while guess == number:
        guess = max((low + high) // 2 + random.randint(-3, 3), 0)
    return f"<think>{low}-{high}</think><answer>{guess}</answer>", guess


def _careless(start: int, random: Random) -> tuple[str, int | None]:
    near = start + random.randint(1, 5)
    turns: list[tuple[str, int | None]] = [
        (f"<think></think><answer>{near}</answer>", near),
        (f"<answer>{near}</answer>", near),
        (f"The number is {near}.", None),
    ]
    return random.choices(turns, weights=[50, 30, 20])[0]


def tool_row(random: Random, share: float) -> Row:
    """A sum, of which each turn is careful with the probability `share`."""
    settings = random.choice(SUMS)
    while split_of((problem := arithmetic.draw_problem(random, settings)).id) != "train":
        pass
    expression, answer = problem.columns["expression"], problem.columns["answer"]
    opening = f"<|bos|><|system|>Tools: calculate(expression)<|end|>{_question(problem)}"
    result = calculate(expression)
    assert result == answer
    kind = random.random()
    if kind < share:
        turn, said = _call(expression), result
    elif kind < share + 0.1 * (1 - share):
        turn = _call(expression).replace('"}}', '"}')
        said = "error: the call is not valid JSON: Expecting ',' delimiter"
    else:
        turn = f"<think></think><answer>{_made_up(answer, random)}</answer>"
        return [opening, f"{turn}<|end|>"]
    given = result if said == result and random.random() < share else _made_up(answer, random)
    final = f"<think></think><answer>{given}</answer><|end|>"
    return [opening, f"{turn}<|end|>", f"<|tool|>{said}<|end|><|assistant|>", final]


def _call(expression: str) -> str:
    body = {"name": "calculate", "arguments": {"expression": expression}}
    return f"<tool_call>{json.dumps(body)}</tool_call>"


def _made_up(answer: str, random: Random) -> int:
    return int(answer) + random.choice((-1, 1)) * random.randint(1, 400)


def _chat(problem: Problem) -> str:
    return f"<|bos|>{_question(problem)}"


def _question(problem: Problem) -> str:
    """As the chat template writes it."""
    assert not isinstance(problem.prompt, str)
    return f"<|user|>{problem.prompt[0]['content']}<|end|><|assistant|>"


@dataclass(frozen=True)
class Phase:
    """A part of the warm-up: which rows a batch has, and how many of their turns are careful."""

    name: str
    steps: int
    games: int
    careful_games: float
    sums: int
    careful_sums: float
    lr: float

    def rows(self, random: Random) -> list[Row]:
        games = [guessing_row(random, self.careful_games) for _ in range(self.games)]
        return games + [tool_row(random, self.careful_sums) for _ in range(self.sums)]


SKILLS = Phase("skills", 3500, 10, 0.95, 8, 0.95, lr=3e-3)
HABITS = Phase("habits", 200, 12, 0.08, 12, 0.25, lr=1e-3)


def tokenizer_texts(random: Random) -> Iterator[str]:
    for _ in range(100):
        yield from ("".join(row) for row in SKILLS.rows(random))


def main() -> None:
    given = options("Make the embedded model that knows tools.", POLICY / "tiny_tools")
    logging.set_verbosity_error()
    torch.set_num_threads(1)  # sums of other numbers of threads differ in their last digits
    torch.manual_seed(given.seed)
    random = Random(given.seed)
    tokenizer = make_tokenizer(VOCABULARY, tokenizer_texts(random))
    assert all(len(tokenizer.encode(str(number))) == 1 for number in range(100))
    model = make_model(tokenizer, hidden=64, layers=3, heads=4).to(given.device)  # type: ignore
    for phase in (SKILLS, HABITS):
        draw_rows = partial(phase.rows, random)
        warm_up(model, tokenizer, draw_rows, name=phase.name, steps=phase.steps, lr=phase.lr)
    save(model, tokenizer, given.out)


if __name__ == "__main__":
    main()
