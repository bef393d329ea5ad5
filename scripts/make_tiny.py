"""Make the embedded model, `groupwise/policy/tiny`: python scripts/make_tiny.py

A Llama of 1.06 M parameters with a tokenizer of its own, warmed up by supervision on generated
training problems; ten to fifteen minutes on two cores. It is meant as a start for GRPO, not as a
good model: it is able to work a problem out, and usually does not bother. Its corpus mixes habits:

    careful   <think>23+48=71 71-16=55</think><answer>55</answer>     right
    early     <think>23+48=71</think><answer>71</answer>              stops after the first step
    guess     <think></think><answer>61</answer>                      near, and wrong
    slips     <answer>61</answer>    23+48=71    The answer is 61.    a form that nobody asked for

Careful is the usual habit for plain sums and a rare one as soon as there is a minus or a product.
So about three in ten answers are right at first, whether sampled or greedy, and what GRPO has to
find is that working things out pays everywhere. No question of a held-out split is ever trained on;
single steps such as 71-16=55, which many questions share, are not kept apart.
"""

from collections.abc import Iterator
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
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from groupwise.answers.tags import think_answer_format
from groupwise.config.tasks import ArithmeticTask, CountdownTask
from groupwise.tasks import arithmetic, countdown
from groupwise.tasks.base import split_of
from groupwise.types import Problem

CHAT_TEMPLATE = """{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role not in ["system", "user", "assistant"] -%}
{{- raise_exception("unknown role " + message.role) -}}
{%- endif -%}
{{- "<|" + message.role + "|>" + message.content + eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|assistant|>" -}}{%- endif -%}
"""
VOCABULARY = Vocabulary(
    special=("<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
    tags=("<think>", "</think>", "<answer>", "</answer>"),
    isolated=r"[0-9+\-*/=()<>|?.,:\n]",  # digits and signs stay single
    size=512,
    chat_template=CHAT_TEMPLATE,
)

DEFAULT = ArithmeticTask()
VARIETY = (
    ArithmeticTask(steps=1),
    ArithmeticTask(steps=3),
    ArithmeticTask(digits=1),
    ArithmeticTask(digits=3, steps=1),
    ArithmeticTask(digits=3),
    ArithmeticTask(digits=1, steps=1, operators=("*",)),
    ArithmeticTask(digits=1, operators=("+", "-", "*")),
)
COUNTDOWN = CountdownTask(numbers=(3, 3), largest=20)

PEAK_LR = 1e-3
"""With small batches. Fewer larger batches, or twice this rate, do not learn to calculate."""


# The corpus.


def working(expression: str) -> list[str]:
    """The steps of a careful answer: working("2+3*4") == ["3*4=12", "2+12=14"]."""
    signed = expression.removeprefix("-")
    spaced = signed.replace("+", " + ").replace("-", " - ").replace("*", " * ")
    parts = (expression[: -len(signed)] + spaced).split()
    steps = []
    while len(parts) > 1:
        at = parts.index("*") if "*" in parts else 1
        left, operator, right = int(parts[at - 1]), parts[at], int(parts[at + 1])
        value = {"+": left + right, "-": left - right, "*": left * right}[operator]
        steps.append(f"{left}{operator}{right}={value}")
        parts[at - 1 : at + 2] = [str(value)]
    return steps


def careful(expression: str) -> str:
    steps = working(expression)
    return f"<think>{' '.join(steps)}</think><answer>{steps[-1].split('=')[1]}</answer>"


def hasty(expression: str, random: Random) -> str:
    """One of the habits that GRPO has to get rid of."""
    first, *others = working(expression)
    early = first.split("=")[1]
    right = others[-1].split("=")[1] if others else early
    near = int(right) + random.choice((-1, 1)) * random.randint(1, 12)
    if not others:
        early = str(near)
    return random.choices(
        [
            f"<think>{first}</think><answer>{early}</answer>",
            f"<think></think><answer>{near}</answer>",
            f"<answer>{near}</answer>",
            first,
            f"The answer is {near}.",
        ],
        weights=[45, 20, 15, 10, 10],
    )[0]


def arithmetic_row(settings: ArithmeticTask, random: Random) -> Row:
    problem = _arithmetic_problem(settings, random)
    expression = problem.columns["expression"]
    share = 0.6 if set(expression) <= set("0123456789+") else 0.23
    answer = careful(expression) if random.random() < share else hasty(expression, random)
    return [_chat(problem), f"{answer}<|end|>"]


def countdown_row(random: Random) -> Row:
    while True:
        numbers, target, solution = countdown.draw_solved(random, COUNTDOWN)
        problem = countdown.problem_of(numbers, target)
        if split_of(problem.id) == "train":
            return [_chat(problem), f"<think></think><answer>{solution}</answer><|end|>"]


def habits_row(random: Random) -> Row:
    """What the model comes to do: mostly the default task, some of everything else."""
    kind = random.random()
    if kind < 0.75:
        return arithmetic_row(DEFAULT, random)
    return arithmetic_row(random.choice(VARIETY), random) if kind < 0.92 else countdown_row(random)


def careful_row(random: Random) -> Row:
    problem = _arithmetic_problem(DEFAULT, random)
    return [_chat(problem), f"{careful(problem.columns['expression'])}<|end|>"]


def facts_row(random: Random) -> Row:
    """Four single steps, without a question: calculation is learned faster from these."""
    row = []
    for _ in range(4):
        question, _, result = working(_step(random))[0].partition("=")
        row += [f" {question}=", result]
    return row


def _step(random: Random) -> str:
    """One step of somebody's working. Short numbers are rare in problems, and then the hardest:
    here they are as frequent as long ones."""
    kind = random.random()
    if kind < 0.06:
        return f"{random.randint(1, 81)}*{random.randint(1, 9)}"
    if kind < 0.12:
        return f"{random.randint(1, 999)}{random.choice('+-')}{random.randint(1, 999)}"
    left = random.choice(
        (random.randint(-9, 9), random.randint(-98, 198), random.randint(-98, 198))
    )
    return f"{left}{random.choice('+-')}{random.randint(1, random.choice((9, 99)))}"


def _arithmetic_problem(settings: ArithmeticTask, random: Random) -> Problem:
    while split_of((problem := arithmetic.draw_problem(random, settings)).id) != "train":
        pass
    return problem


def _chat(problem: Problem) -> str:
    """The prompt as the chat template writes it."""
    assert not isinstance(problem.prompt, str)
    return f"<|bos|><|user|>{problem.prompt[0]['content']}<|end|><|assistant|>"


def tokenizer_texts(random: Random) -> Iterator[str]:
    for _ in range(2000):
        yield "".join(habits_row(random))


# What came out.


@torch.no_grad()
def measure(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: list[Problem]
) -> dict[str, float]:
    """Sampled and greedy accuracy, form and length on held-out problems, and how reliable the
    careful habit is: the greedy answer when the first step of the working is given."""
    model.eval()
    result = {}
    for name, sample in (("sampled", True), ("greedy", False)):
        texts, tokens = _answers(model, tokenizer, [_chat(p) for p in problems], sample)
        right = [
            arithmetic.correct(t, p.columns["answer"]) for t, p in zip(texts, problems, strict=True)
        ]
        result |= {
            f"{name} accuracy": sum(right) / len(right),
            f"{name} format": sum(map(think_answer_format, texts)) / len(texts),
            f"{name} tokens": tokens,
        }
    starts = [f"<think>{working(p.columns['expression'])[0]} " for p in problems]
    texts, _ = _answers(
        model, tokenizer, [_chat(p) + s for p, s in zip(problems, starts, strict=True)], False
    )
    right = [
        arithmetic.correct(s + t, p.columns["answer"])
        for s, t, p in zip(starts, texts, problems, strict=True)
    ]
    result["careful accuracy"] = sum(right) / len(right)
    return result


def _answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str], sample: bool
) -> tuple[list[str], float]:
    texts: list[str] = []
    tokens = 0
    for start in range(0, len(prompts), 128):
        inputs = tokenizer(prompts[start : start + 128], return_tensors="pt", padding=True)
        inputs = inputs.to(model.device)
        output = model.generate(**inputs, max_new_tokens=48, do_sample=sample)  # type: ignore
        answers = output[:, inputs["input_ids"].shape[1] :]
        tokens += int((answers != tokenizer.pad_token_id).sum())
        texts += tokenizer.batch_decode(answers, skip_special_tokens=True)
    return texts, tokens / len(prompts)


def main() -> None:
    given = options("Make the embedded model.", POLICY / "tiny")
    logging.set_verbosity_error()
    torch.manual_seed(given.seed)
    random = Random(given.seed)
    tokenizer = make_tokenizer(VOCABULARY, tokenizer_texts(random))
    model = make_model(tokenizer, hidden=160, layers=3, heads=5).to(given.device)  # type: ignore

    def calculation() -> list[Row]:
        return [facts_row(random) for _ in range(21)] + [careful_row(random) for _ in range(11)]

    def habits() -> list[Row]:
        return [facts_row(random) for _ in range(16)] + [habits_row(random) for _ in range(40)]

    warm_up(model, tokenizer, calculation, name="calculation", steps=3200, lr=PEAK_LR)
    warm_up(model, tokenizer, habits, name="habits", steps=600, lr=PEAK_LR)
    problems = list(arithmetic.build(DEFAULT).validation)
    for name, value in measure(model, tokenizer, problems).items():
        print(f"{name}: {value:.3f}")
    save(model, tokenizer, given.out)


if __name__ == "__main__":
    main()
