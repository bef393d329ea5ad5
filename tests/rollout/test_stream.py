"""The native engine as a stream: requests at any time, cancelled ones, new weights, few pages."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eager_graphs import EagerDecoder
from groupwise.errors import ModelError
from groupwise.policy.load import Policy
from groupwise.rollout.engine import generate
from groupwise.rollout.native import engine as native
from groupwise.rollout.native import kv_cache
from groupwise.rollout.native import scheduler as scheduling
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.kv_cache import PagedKVCache
from groupwise.rollout.native.limits import ADMIT_EVERY, MULTI_STEP
from groupwise.rollout.native.prefill import Context, prefill
from groupwise.rollout.native.scheduler import Scheduler
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens
from groupwise.rollout.transformers import TransformersEngine
from groupwise.types import Completion, Request, Sampling
from small_models import random_policy

PROMPT = tuple(range(5, 18))
POLICY = random_policy()
Answers = tuple[Completion, ...]


@pytest.fixture(autouse=True, params=["steps", "launched ahead"])
def _one_step_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same tests with steps launched as on CUDA: several, and the next before they end."""
    monkeypatch.setattr(native, "SLICE_SECONDS", 0.0)
    if request.param == "launched ahead":
        monkeypatch.setattr(native, "Decoder", EagerDecoder)


def endless(policy: Policy) -> Policy:
    """The same model, which never ends an answer by itself."""
    object.__setattr__(policy, "eos_ids", (10**6,))
    return policy


def scheduler_of(engine: NativeEngine) -> Scheduler:
    assert engine.scheduler is not None
    return engine.scheduler


def tokens_of(answers: Answers) -> list[tuple[int, ...]]:
    return [answer.tokens for answer in answers]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_requests_come_while_others_run_and_samplings_mix(kind: str) -> None:
    def make() -> NativeEngine | TransformersEngine:
        return (
            NativeEngine(POLICY, 8, page=4) if kind == "native" else TransformersEngine(POLICY, 8)
        )

    asked = [
        (Request(PROMPT, (1, 2, 3)), Sampling(20)),
        (Request(PROMPT[:6], (4, 5)), Sampling(9, temperature=0.5)),
        (Request(PROMPT[:9], (6,)), Sampling(12, temperature=0.0, stop=("3",))),
        (Request(PROMPT[:5], (7,)), Sampling(14, repetition_penalty=1.4)),
        (Request(PROMPT[:5], ()), Sampling(14)),
    ]

    async def all_answers() -> list[Answers]:
        engine, tasks = make(), []
        for request, sampling in asked:
            tasks.append(asyncio.create_task(engine.sample(request, sampling)))
            for _ in range(3):  # the others take steps meanwhile
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    for (request, sampling), answers in zip(asked, asyncio.run(all_answers()), strict=True):
        (alone,) = generate(make(), [request], sampling)
        assert tokens_of(answers) == tokens_of(alone)
        assert [a.stop for a in answers] == [a.stop for a in alone]


def test_a_cancelled_call_frees_its_rows_and_pages_at_the_next_step() -> None:
    engine = NativeEngine(endless(random_policy()), 4, page=4)

    async def scenario() -> Answers:
        gone = asyncio.create_task(engine.sample(Request(PROMPT, tuple(range(6))), Sampling(50)))
        kept = asyncio.create_task(engine.sample(Request(PROMPT[:3], (9,)), Sampling(30)))
        await until(lambda: engine.scheduler is not None and engine.scheduler.batch.size == 4)
        gone.cancel()
        scheduler = scheduler_of(engine)
        await until(lambda: scheduler.batch.size == 1 and not scheduler.prefilled)
        assert len(scheduler.calls) == 1 and scheduler.pool.in_use == len(scheduler.batch.pages[0])
        return await kept

    answers = asyncio.run(scenario())
    assert scheduler_of(engine).pool.in_use == 0
    assert [answers] == generate(engine, [Request(PROMPT[:3], (9,))], Sampling(30))


def test_pre_empted_answers_have_the_tokens_that_they_would_have_had() -> None:
    policy = endless(random_policy())
    requests = [Request(PROMPT[n:], (n, n + 50)) for n in range(5)]
    expected = generate(NativeEngine(policy, 10), requests, Sampling(40))
    engine = NativeEngine(policy, 10, page=4, max_pages=60)  # 10 answers of up to 53 need 120
    found = generate(engine, requests, Sampling(40))
    assert scheduler_of(engine).batch.admitted > 10
    for ours, theirs in zip(found, expected, strict=True):
        assert tokens_of(ours) == tokens_of(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_an_answer_that_does_not_fit_even_alone_says_so_and_others_go_on() -> None:
    engine = NativeEngine(endless(random_policy()), 4, page=4, max_pages=8)

    async def scenario() -> list[Any]:
        calls = [
            engine.sample(Request(PROMPT, (1,)), Sampling(40)),
            engine.sample(Request(PROMPT * 4, (1,)), Sampling(2)),
            engine.sample(Request(PROMPT[:3], (1,)), Sampling(9)),
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    grown, long_prompt, fits = asyncio.run(scenario())
    assert isinstance(grown, ModelError) and "up to 53 tokens do not fit" in str(grown)
    assert isinstance(long_prompt, ModelError) and "up to 54 tokens" in str(long_prompt)
    assert len(fits[0].tokens) == 9 and scheduler_of(engine).pool.in_use == 0


def test_memory_is_by_tokens_held_and_a_prompt_is_held_once() -> None:
    engine = NativeEngine(endless(random_policy()), 32, page=4)
    prompts = [PROMPT + (n,) * 30 for n in range(3)]

    async def scenario() -> None:
        calls = [engine.sample(Request(p, tuple(range(8))), Sampling(60)) for p in prompts]
        running = asyncio.gather(*calls)
        await until(lambda: engine.scheduler is not None and engine.scheduler.batch.size == 24)
        while not running.done():
            scheduler = scheduler_of(engine)
            batch = scheduler.batch
            answers = int(batch.output_lens[: batch.size].sum())
            held = sum(map(len, prompts)) + answers if batch.size else 0
            launched = 2 * scheduler.decoder.most_steps * batch.size
            assert scheduler.pool.in_use * 4 <= 1.1 * held + 4 * batch.size + launched
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_an_earlier_turn_is_not_computed_again_until_the_weights_change() -> None:
    policy = random_policy(seed=2)
    fed: list[int] = []
    body = policy.body

    def counted(**inputs: torch.Tensor) -> torch.Tensor:
        fed.append(inputs["input_ids"].numel())
        return body(**inputs)

    object.__setattr__(endless(policy), "body", counted)
    engine = NativeEngine(policy, 4, page=4)
    ((first,),) = generate(engine, [Request(PROMPT, (1,))], Sampling(10))
    second = Request(PROMPT + first.tokens + (7, 8, 9), (2,))
    fresh = generate(NativeEngine(policy, 4), [second], Sampling(10))
    fed.clear()
    again = generate(engine, [second], Sampling(10))
    held = (len(PROMPT) + 10 - 1) // 4 * 4  # the newest token's keys were never computed
    assert fed[0] == len(second.prompt_tokens) - held and tokens_of(again[0]) == tokens_of(fresh[0])
    assert again[0][0].logprobs == pytest.approx(fresh[0][0].logprobs, abs=1e-4)
    engine.load_weights(1, ())
    fed.clear()
    assert tokens_of(generate(engine, [second], Sampling(10))[0]) == tokens_of(fresh[0])
    assert fed[0] == len(second.prompt_tokens)


def weights(seed: int) -> list[tuple[str, torch.Tensor]]:
    return [(n, p.detach().clone()) for n, p in random_policy(seed=seed).model.named_parameters()]


@torch.no_grad()
def test_replaying_the_recorded_switch_points_gives_the_recorded_tokens() -> None:
    engine = NativeEngine(endless(random_policy(seed=0)), 4, page=4)
    sampling, keys = Sampling(50, temperature=0.8), (3, 4)

    async def scenario() -> Answers:
        call = asyncio.create_task(engine.sample(Request(PROMPT, keys), sampling))
        for version, length in ((1, 6), (2, 22)):
            await until(
                lambda length=length: (
                    engine.scheduler is not None
                    and engine.scheduler.batch.size == 2
                    and int(engine.scheduler.batch.output_lens[0]) >= length
                )
            )
            engine.load_weights(version, weights(version))
        return await call

    for key, answer in zip(keys, asyncio.run(scenario()), strict=True):
        assert answer.version == 0 and [v for _, v in answer.versions] == [0, 1, 2]
        replayed = random_policy(seed=0).model
        tokens: list[int] = []
        state, fed = None, list(PROMPT)
        for position in range(50):
            version = dict(answer.versions).get(position)
            if version:
                replayed.load_state_dict(dict(weights(version)), strict=False)
            output = replayed(torch.tensor([fed]), past_key_values=state, use_cache=True)
            state, at = output.past_key_values, torch.tensor([position])
            drawn, _ = sample_tokens(
                output.logits[:, -1], key_tensor([key], "cpu"), at, sampling, torch.zeros(1, 0)
            )
            fed = drawn.tolist()
            tokens += fed
        assert tuple(tokens) == answer.tokens


def test_weights_that_are_the_policys_own_are_not_copied_and_unknown_ones_are_refused() -> None:
    policy = random_policy()
    for engine in (NativeEngine(policy, 4), TransformersEngine(policy, 4)):
        engine.load_weights(3, policy.model.named_parameters())
        (answer,) = generate(engine, [Request(PROMPT, (1,))], Sampling(4))[0]
        assert answer.version == 3 and answer.versions == ()
        with pytest.raises(ModelError, match=r"no weight 'elsewhere'"):
            engine.load_weights(4, [("elsewhere", torch.zeros(1))])


def test_a_failing_step_fails_every_call_and_the_engine_can_be_used_again() -> None:
    policy = random_policy()
    engine = NativeEngine(policy, 4, page=4)
    generate(engine, [Request((1,), (0,))], Sampling(2))  # looks at the model, once
    body, left = policy.body, [4]

    def failing(**inputs: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("no luck")
        return body(**inputs)

    object.__setattr__(policy, "body", failing)

    async def scenario() -> list[Any]:
        calls = [engine.sample(Request(PROMPT[n:], (n,)), Sampling(20)) for n in range(6)]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [str(error) for error in asyncio.run(scenario())] == ["no luck"] * 6
    requests = [Request(PROMPT, (1,))]
    (expected,) = generate(NativeEngine(policy, 4), requests, Sampling(9))
    assert tokens_of(generate(engine, requests, Sampling(9))[0]) == tokens_of(expected)


def test_between_slices_other_tasks_have_gradients_and_modules_are_not_looked_at_again() -> None:
    policy = random_policy()
    model = policy.model.train()
    looks, eval_mode = [0], model.eval

    def counted() -> torch.nn.Module:
        looks[0] += 1
        return eval_mode()

    object.__setattr__(model, "eval", counted)
    engine = NativeEngine(endless(policy), 4, page=4)

    async def scenario() -> Answers:
        call = asyncio.create_task(engine.sample(Request(PROMPT, (1,)), Sampling(99)))
        await until(lambda: engine.scheduler is not None and engine.scheduler.batch.size == 1)
        assert torch.is_grad_enabled() and not model.training
        before = looks[0]
        for _ in range(5):
            await asyncio.sleep(0)
        assert looks[0] == before
        model.train()  # an update begins; answers go on without its dropout
        await asyncio.sleep(0)
        assert not model.training and not call.done()
        return await call

    asyncio.run(scenario())
    assert model.training


@pytest.mark.parametrize("rows", [4, 1])
def test_steps_are_launched_ahead_but_not_when_an_answer_that_waits_is_to_start(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "Decoder", EagerDecoder)
    engine = NativeEngine(endless(random_policy()), rows, page=4)
    unread: dict[bool, list[int]] = {True: [], False: []}

    async def scenario() -> None:
        task = asyncio.create_task(engine.sample(Request(PROMPT[:4], (1, 2)), Sampling(40)))
        while not task.done():
            await asyncio.sleep(0)
            if (scheduler := engine.scheduler) is not None:
                waits = bool(scheduler.waiting or scheduler.prefilled)
                waits &= scheduler.steps_since_admission + MULTI_STEP > ADMIT_EVERY
                unread[waits].append(scheduler.decoder.unread)

    asyncio.run(scenario())
    assert any(unread[False]) and not any(unread[True])
    assert unread[True] or rows > 1


def test_on_cuda_few_that_wait_start_together_and_many_at_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = "launched ahead" in request.node.name
    prefilled: list[int] = []

    def counted(
        policy: Policy, cache: PagedKVCache, contexts: Sequence[Context], *layers: Any
    ) -> torch.Tensor:
        prefilled.append(len(contexts))
        return prefill(policy, cache, contexts, *layers)

    monkeypatch.setattr(scheduling, "prefill", counted)
    engine = NativeEngine(endless(random_policy()), 32, page=4)

    async def scenario() -> None:
        group = Request(PROMPT, tuple(range(16)))
        running = [asyncio.create_task(engine.sample(group, Sampling(200)))]
        await until(lambda: engine.scheduler is not None and engine.scheduler.batch.size == 16)
        for number in range(3):
            new = Request(PROMPT[number + 1 :], (number,))
            running.append(asyncio.create_task(engine.sample(new, Sampling(8))))
            for _ in range(2):
                await asyncio.sleep(0)
        await asyncio.gather(*running[1:])
        few = list(prefilled)
        burst = [Request((20 - number, *PROMPT), (number,)) for number in range(8)]
        await asyncio.gather(*(engine.sample(each, Sampling(8)) for each in burst))
        assert (few, prefilled[len(few) :]) == ([1, 3] if ahead else [1, 1, 1, 1], [8])
        running[0].cancel()

    asyncio.run(scenario())


def test_answers_can_be_asked_for_where_a_loop_runs_already() -> None:
    engine, requests = NativeEngine(POLICY, 4), [Request(PROMPT, (1,))]

    async def inside() -> list[Answers]:
        return generate(engine, requests, Sampling(5))

    assert asyncio.run(inside()) == generate(engine, requests, Sampling(5))


def test_the_cache_grows_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = endless(random_policy())
    requests = [Request(PROMPT[n:], (n, n + 50)) for n in range(5)]
    expected = generate(NativeEngine(policy, 10), requests, Sampling(40))
    monkeypatch.setattr(kv_cache, "ONE_CHUNK", ())
    monkeypatch.setattr(kv_cache, "CHUNK_BYTES", 1)
    engine = NativeEngine(policy, 10, page=4)
    found = generate(engine, requests, Sampling(40))
    cache = scheduler_of(engine).cache
    assert len(cache.chunks) > 2 and scheduler_of(engine).batch.admitted == 10
    key_page = cache.chunks[1][1, 0, 3]  # layer 1, keys, page 3 of chunk 1
    distance = (key_page.data_ptr() - cache.layers[1][0].data_ptr()) // 4
    assert cache.offsets[cache.chunk_pages + 3] == distance
    for ours, theirs in zip(found, expected, strict=True):
        assert tokens_of(ours) == tokens_of(theirs)


@settings(max_examples=15)
@given(st.data())
def test_whatever_comes_all_pages_are_free_in_the_end(data: st.DataObject) -> None:
    page, pages = data.draw(st.sampled_from([(2, 30), (4, 18), (3, 200)]))
    engine = NativeEngine(POLICY, data.draw(st.integers(1, 6)), page=page, max_pages=pages)
    calls = data.draw(
        st.lists(
            st.tuples(
                st.integers(1, len(PROMPT)),  # prompt
                st.integers(1, 4),  # answers
                st.integers(1, 16),  # longest
                st.sampled_from([0.0, 1.0]),  # temperature
                st.integers(0, 4),  # turns of the loop before the next call
                st.one_of(st.none(), st.integers(0, 9)),  # when it is cancelled
                st.booleans(),  # whether weights are loaded then
            ),
            min_size=1,
            max_size=7,
        )
    )

    async def one(length: int, answers: int, longest: int, temperature: float) -> Answers:
        request = Request(PROMPT[:length], tuple(range(answers)))
        return await engine.sample(request, Sampling(longest, temperature))

    async def scenario() -> list[Any]:
        tasks, cancels = [], []
        for length, answers, longest, temperature, pause, cancelled, load in calls:
            task = asyncio.create_task(one(length, answers, longest, temperature))
            tasks.append(task)
            if cancelled is not None:
                loop = asyncio.get_running_loop()
                cancels.append(loop.call_later(cancelled / 1000, task.cancel))
            for _ in range(pause):
                await asyncio.sleep(0)
            if load:
                engine.load_weights(engine.version + 1, ())
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(scenario())
    for (length, answers, longest, temperature, *_), result in zip(calls, results, strict=True):
        if isinstance(result, ModelError | asyncio.CancelledError):
            continue
        request = Request(PROMPT[:length], tuple(range(answers)))
        (alone,) = generate(NativeEngine(POLICY, 8), [request], Sampling(longest, temperature))
        assert tokens_of(result) == tokens_of(alone)
    if engine.scheduler is not None:
        scheduler = engine.scheduler
        assert scheduler.pool.in_use == 0 and not scheduler.waiting and not scheduler.prefilled
        assert scheduler.pool.free + len(scheduler.pool.cached) == scheduler.pool.capacity - 1


def test_tokens_are_told_as_they_are_drawn_also_of_answers_that_had_to_wait() -> None:
    told: dict[int, list[tuple[list[int], list[float]]]] = {0: [], 1: [], 2: []}
    done: list[Answers] = []

    async def stream() -> None:
        engine = NativeEngine(POLICY, 8, page=4, max_pages=12)

        def on_tokens(index: int, tokens: Iterable[int], logprobs: Iterable[float]) -> None:
            assert not done, "before the end"
            told[index].append((list(tokens), list(logprobs)))

        request = Request(PROMPT, (1, 2, 3))
        done.append(await engine.sample_stream(request, Sampling(20), on_tokens))
        plain = await engine.sample(request, Sampling(20))
        assert tokens_of(done[0]) == tokens_of(plain)

    asyncio.run(stream())
    for index, answer in enumerate(done[0]):
        parts = told[index]
        assert tuple(token for tokens, _ in parts for token in tokens) == answer.tokens
        assert tuple(logp for _, logps in parts for logp in logps) == answer.logprobs
        assert len(parts) >= len(answer.tokens) // MULTI_STEP, "a few steps at a time"
