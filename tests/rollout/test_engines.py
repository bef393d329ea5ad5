"""What every engine must do, by the Protocol."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engines import generate
from groupwise.policy.load import Policy
from groupwise.rollout.engine import Engine
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.noise import answer_key
from groupwise.rollout.transformers import TransformersEngine
from groupwise.types import Request, Sampling
from small_models import random_policy

ENGINES: dict[str, Callable[[Policy], Engine]] = {
    "transformers": lambda policy: TransformersEngine(policy, max_batch=6),
    "native": lambda policy: NativeEngine(policy, max_batch=64),
    "native, few rows": lambda policy: NativeEngine(policy, max_batch=5),
    "native, small pages": lambda policy: NativeEngine(policy, 64, page=2),
    "native, few pages": lambda policy: NativeEngine(policy, 64, page=4, max_pages=14),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param](random_policy())


PROMPTS = [(5, 6, 7), (9,), (11, 12, 13, 14, 15), (9, 30)]


def requests(answers: int = 3) -> list[Request]:
    return [
        Request(prompt, tuple(answer_key(0, n, i) for i in range(answers)))
        for n, prompt in enumerate(PROMPTS)
    ]


def test_an_answer_is_the_same_alone_and_in_a_full_batch(engine: Engine) -> None:
    sampling = Sampling(max_tokens=12)
    together = generate(engine, requests(), sampling)
    for request, answers in zip(requests(), together, strict=True):
        for key, answer in zip(request.keys, answers, strict=True):
            ((alone,),) = generate(engine, [Request(request.prompt_tokens, (key,))], sampling)
            assert alone.tokens == answer.tokens
            assert alone.logprobs == pytest.approx(answer.logprobs, abs=1e-4)
            assert alone.stop == answer.stop


def test_answers_differ_by_key_and_end_at_eos_or_limit(engine: Engine) -> None:
    groups = generate(engine, requests(8), Sampling(max_tokens=12))
    answers = [answer for group in groups for answer in group]
    assert len({answer.tokens for answer in answers}) > 20
    assert {answer.stop for answer in answers} == {"eos", "length"}
    for answer in answers:
        assert len(answer.logprobs) == len(answer.tokens) <= 12
        assert (answer.tokens[-1] == 2) == (answer.stop == "eos")
        assert 2 not in answer.tokens[:-1]


@torch.no_grad()
def test_logprobs_are_the_models_own() -> None:
    policy = random_policy()
    for make in ENGINES.values():
        for request, answers in zip(
            requests(), generate(make(policy), requests(), Sampling(10, 0.8)), strict=True
        ):
            for answer in answers:
                tokens = torch.tensor([request.prompt_tokens + answer.tokens])
                logits = policy.model(input_ids=tokens).logits[0] / 0.8
                start = len(request.prompt_tokens) - 1
                logprobs = logits[start:-1].log_softmax(-1)
                expected = logprobs.gather(-1, torch.tensor(answer.tokens)[:, None]).squeeze(-1)
                assert answer.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_generate_that_draws_by_itself_gets_log_probs_too() -> None:
    """A script may put its own in place of the model's, which calls no logits processor."""
    policy = random_policy()
    engine, sampling = TransformersEngine(policy, max_batch=64), Sampling(10, 0.8)
    expected = generate(engine, requests(), sampling)
    drawn, model = policy.model.generate, policy.model
    model.generate = lambda input_ids, attention_mask, logits_processor, **more: drawn(
        input_ids=input_ids,
        attention_mask=attention_mask,
        logits_processor=list(fresh(logits_processor)),
        **more,
    )
    for given, answers in zip(expected, generate(engine, requests(), sampling), strict=True):
        for one, other in zip(given, answers, strict=True):
            assert other.tokens == one.tokens
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)


def fresh(processors: Any) -> Any:
    """The same processors, which keep what they see to themselves."""
    for processor in processors:
        alone = copy.copy(processor)
        alone.logprobs = []
        yield alone


def test_greedy_takes_the_likeliest_token(engine: Engine) -> None:
    a = generate(engine, requests(1), Sampling(8, temperature=0.0))
    b = generate(
        engine,
        [Request(r.prompt_tokens, (999,)) for r in requests(1)],
        Sampling(8, temperature=0.0),
    )
    assert [x[0].tokens for x in a] == [x[0].tokens for x in b]


def test_stop_strings_end_an_answer_with_the_token_that_completes_them(engine: Engine) -> None:
    free = generate(engine, requests(), Sampling(12))
    stop = str(free[0][0].tokens[2])  # the test tokenizer writes token ids as decimal numbers
    for before, after in zip(
        free, generate(engine, requests(), Sampling(12, stop=(stop,))), strict=True
    ):
        for long, short in zip(before, after, strict=True):
            ends = [i for i, token in enumerate(long.tokens) if stop in str(token)]
            if ends and ends[0] + 1 < len(long.tokens):
                assert short.tokens == long.tokens[: ends[0] + 1]
                assert short.stop == "stop"
            elif not ends:
                assert short.tokens == long.tokens


def test_version_says_which_weights_sampled(engine: Engine) -> None:
    engine.load_weights(7, ())
    assert generate(engine, requests(1), Sampling(2))[0][0].version == 7
