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

import argparse
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from groupwise.config import ArithmeticTask, CountdownTask
from groupwise.rewards.tags import think_answer_format
from groupwise.tasks import arithmetic, countdown
from groupwise.tasks.base import split_of
from groupwise.types import Problem

OUT = Path(__file__).parent.parent / "groupwise" / "policy" / "tiny"

SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
CHAT_TEMPLATE = """{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role not in ["system", "user", "assistant"] -%}
{{- raise_exception("unknown role " + message.role) -}}
{%- endif -%}
{{- "<|" + message.role + "|>" + message.content + eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|assistant|>" -}}{%- endif -%}
"""

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

Row = list[str]
"""Text in pieces: one that is only read, one that is learned, one that is read, and so on."""


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


# The tokenizer.


def make_tokenizer(random: Random) -> PreTrainedTokenizerFast:
    """Byte-level BPE, so all text can be written. Digits and signs stay single; the words of the
    questions may merge across spaces, so that a whole instruction takes a handful of tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore
        [
            pre_tokenizers.Split(Regex(r"[0-9+\-*/=()<>|?.,:\n]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=512 - len(TAGS),
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_texts(random), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL[3:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
        padding_side="left",
    )


def _tokenizer_texts(random: Random) -> Iterator[str]:
    for _ in range(2000):
        text = "".join(habits_row(random))
        for marker in SPECIAL + TAGS:
            text = text.replace(marker, "\n")
        yield text


# The model and its warm-up.


def make_model(vocabulary: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=160,
            intermediate_size=480,
            num_hidden_layers=3,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=512,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            pad_token_id=SPECIAL.index("<|pad|>"),
            bos_token_id=SPECIAL.index("<|bos|>"),
            eos_token_id=SPECIAL.index("<|end|>"),
        )
    )


def collate(
    rows: list[Row], tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded tokens, and labels that are -100 wherever nothing is to be learned."""
    encoded = iter(tokenizer([piece for row in rows for piece in row])["input_ids"])
    ids = [[next(encoded) for _ in row] for row in rows]
    longest = max(sum(map(len, pieces)) for pieces in ids)
    tokens_BT = torch.full((len(rows), longest), SPECIAL.index("<|pad|>"))
    labels_BT = torch.full((len(rows), longest), -100)
    for row, pieces in enumerate(ids):
        start = 0
        for position, piece in enumerate(pieces):
            end = start + len(piece)
            tokens_BT[row, start:end] = torch.tensor(piece)
            if position % 2 == 1:
                labels_BT[row, start:end] = tokens_BT[row, start:end]
            start = end
    return tokens_BT, labels_BT


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    draw_rows: Callable[[], list[Row]],
    *,
    name: str,
    steps: int,
    lr: float = PEAK_LR,
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started, total = time.monotonic(), 0.0
    model.train()
    for step in range(steps):
        decay = 0.52 + 0.48 * math.cos(math.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 50) * decay
        tokens_BT, labels_BT = collate(draw_rows(), tokenizer)
        loss = model(input_ids=tokens_BT.to(model.device), labels=labels_BT.to(model.device)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        if (step + 1) % 100 == 0:
            seconds, mean = time.monotonic() - started, total / 100
            print(f"{name}: step {step + 1}/{steps}, loss {mean:.3f}, {seconds:.0f} s", flush=True)
            total = 0.0


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
    parser = argparse.ArgumentParser(description="Make the embedded model.")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.manual_seed(options.seed)
    random = Random(options.seed)
    tokenizer = make_tokenizer(random)
    model = make_model(len(tokenizer)).to(options.device)  # type: ignore
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")

    def calculation() -> list[Row]:
        return [facts_row(random) for _ in range(21)] + [careful_row(random) for _ in range(11)]

    def habits() -> list[Row]:
        return [facts_row(random) for _ in range(16)] + [habits_row(random) for _ in range(40)]

    warm_up(model, tokenizer, calculation, name="calculation", steps=3200)
    warm_up(model, tokenizer, habits, name="habits", steps=600)
    problems = list(arithmetic.build(DEFAULT).validation)
    for name, value in measure(model, tokenizer, problems).items():
        print(f"{name}: {value:.3f}")
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
