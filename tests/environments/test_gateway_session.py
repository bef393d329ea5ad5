"""Sessions of the gateway: what was sampled is recorded as it was sampled, whatever agents do."""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from environments.scripted import END, LIMITS
from environments.templates import tokenizer_of
from groupwise.environments.chat import TemplateChat
from groupwise.environments.gateway_reply import ChatReply, ReplyWriter
from groupwise.environments.gateway_request import RequestRefused, parse_request
from groupwise.environments.gateway_session import MOST_AT_ONCE, Session
from groupwise.types import Completion, Request, Sampling

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>'
QUESTION = {"role": "user", "content": "What is 3+4?"}


class LetterEngine:
    """Writes a token for each letter, which is not how the tokenizer would write the text."""

    def __init__(self, write: Callable[[str, int], str], name: str = "tiny") -> None:
        self.write, self.tokenizer = write, tokenizer_of(name)
        self.asked: list[tuple[Request, Sampling]] = []
        self.answers: list[tuple[Request, Completion]] = []
        self.waits: asyncio.Event | None = None
        self.version = 0

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        self.asked.append((request, sampling))
        prompt, number = self.tokenizer.decode(list(request.prompt_tokens)), len(self.asked)
        if self.waits is not None:
            await self.waits.wait()
        answers = []
        for index in range(len(request.keys)):
            text = self.write(prompt, number) + ("" if index == 0 else f" {index}")
            letters = [self.tokenizer(letter, add_special_tokens=False) for letter in text]
            tokens = (*(t for letter in letters for t in letter["input_ids"]), END)
            stop = "eos" if len(tokens) <= sampling.max_tokens else "length"
            tokens = tokens[: sampling.max_tokens]
            logprobs = tuple(-0.5 - n / 100 for n in range(len(tokens)))
            answers.append(Completion(tokens, logprobs, stop, version=self.version))
            self.answers.append((request, answers[-1]))
        return tuple(answers)

    def load_weights(self, version: int, weights: Any) -> None: ...

    def close(self) -> None: ...


def told(prompt: str, number: int) -> str:
    return f"reply number {number}"


def session_of(engine: LetterEngine, name: str = "tiny", **more: Any) -> Session:
    tokenizer = tokenizer_of(name)
    options: dict[str, Any] = {"key": 77, "limits": LIMITS, "sampling": Sampling(200)} | more
    sampling, limits = options.pop("sampling"), options.pop("limits")
    chat = TemplateChat(tokenizer, (END,))
    return Session(engine, chat, tokenizer, (END,), sampling, limits, **options)


async def ask(session: Session, *messages: Any, **more: Any) -> ChatReply:
    return await session.complete(parse_request(json.dumps({"messages": messages} | more).encode()))


def sent(reply: ChatReply, choice: int = 0) -> dict[str, Any]:
    """The message as a client gets it, and sends it back."""
    body = {"messages": [QUESTION]}
    whole = ReplyWriter(parse_request(json.dumps(body).encode()), None, ()).whole(reply)
    return json.loads(json.dumps(whole["choices"][choice]["message"]))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def check_exact(engine: LetterEngine, session: Session) -> None:
    """Every answer stands behind its own prompt, once, marked as sampled; nothing else is."""
    segments = session.segments()
    places = []
    for request, answer in engine.answers:
        fitting = []
        for number, segment in enumerate(segments):
            written, start = segment.completion, len(request.prompt_tokens) - len(segment.prompt)
            whole = (*segment.prompt, *written.tokens)
            end = len(request.prompt_tokens) + len(answer.tokens)
            sampled = written.sampled or (True,) * len(written.tokens)
            if (
                start >= 0
                and whole[:end] == (*request.prompt_tokens, *answer.tokens)
                and all(sampled[start : start + len(answer.tokens)])
                and written.logprobs[start : start + len(answer.tokens)] == answer.logprobs
            ):
                fitting.append((number, start))
        assert fitting, "an answer was not recorded as it was sampled"
        places.append(next(place for place in fitting if place not in places))
    count = sum(segment.completion.length for segment in segments)
    assert count == sum(len(answer.tokens) for _, answer in engine.answers) == sum(session.turns)


def test_a_conversation_goes_on_from_the_tokens_that_were_sampled() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine)
        first = await ask(session, QUESTION)
        second = await ask(session, QUESTION, sent(first), user("And 5+6?"))
        engine.version = 3
        await ask(session, QUESTION, sent(first), user("And 5+6?"), sent(second), user("So?"))
        (segment,) = session.segments()
        held = (*first.prompt_tokens, *first.choices[0].answer.tokens)
        assert second.prompt_tokens[: len(held)] == held
        rendered = tokenizer_of("tiny").apply_chat_template(
            [QUESTION, sent(first), user("And 5+6?")], add_generation_prompt=True, tokenize=False
        )
        again = tuple(tokenizer_of("tiny")(rendered, add_special_tokens=False)["input_ids"])
        assert again != second.prompt_tokens, "to render it again would have changed the tokens"
        check_exact(engine, session)
        versions = [version for _, version in segment.completion.versions]
        assert versions == [0, 0, 3] and segment.completion.version == 0
        assert [m["role"] for m in session.messages] == [
            "user", "assistant", "user", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert session.text == "reply number 3" and session.stop == "eos"

    asyncio.run(converse())


def test_an_agent_that_rewrites_the_past_begins_a_segment() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine)
        first = await ask(session, QUESTION)
        for changed in (
            [QUESTION, {"role": "assistant", "content": "7"}, user("Sure?")],
            [user("What is 3+5?"), sent(first), user("Sure?")],
            [QUESTION, sent(first), {"role": "assistant", "content": "Hm."}, user("Sure?")],
        ):
            before = len(session.segments())
            await ask(session, *changed)
            assert len(session.segments()) == before + 1
        check_exact(engine, session)
        assert [s.completion.segment for s in session.segments()] == [0, 1, 2, 3]
        # The first conversation can still go on.
        await ask(session, QUESTION, sent(first), user("Sure?"))
        assert len(session.segments()) == 4
        check_exact(engine, session)

    asyncio.run(converse())


def test_what_is_asked_twice_from_one_point_is_two_segments() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine)
        first = await ask(session, QUESTION)
        for _ in range(2):
            await ask(session, QUESTION, sent(first), user("Sure?"))
        _, two = session.segments()
        held = (*first.prompt_tokens, *first.choices[0].answer.tokens)
        assert two.prompt[: len(held)] == held, "the second knows the first turn by its own tokens"
        check_exact(engine, session)
        assert len({request.keys for request, _ in engine.asked}) == 3
        news = [m["content"] for m in session.messages if m["role"] == "user"]
        assert news == ["What is 3+4?", "Sure?", "Sure?"]

    asyncio.run(converse())


def test_each_of_n_choices_can_be_continued() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine)
        reply = await ask(session, QUESTION, n=3)
        assert len(session.segments()) == 3 and len(engine.asked[0][0].keys) == 3
        await ask(session, QUESTION, sent(reply, 1), user("Sure?"))
        assert len(session.segments()) == 3
        assert [len(branch) for branch in map(session_turns, session.segments())] == [1, 2, 1]
        check_exact(engine, session)
        assert session.turns == (15, 17, 15, 17), "segment by segment"

    def session_turns(segment: Any) -> list[int]:
        """Lengths of the runs of sampled tokens."""
        flags = segment.completion.sampled or (True,) * len(segment.completion.tokens)
        return [len(run) for run in "".join("x" if f else " " for f in flags).split()]

    asyncio.run(converse())


def test_tool_calls_come_back_and_are_known() -> None:
    async def converse() -> None:
        engine = LetterEngine(lambda p, n: f"Let me see. {CALL}" if n < 3 else "It is 7.")
        session = session_of(engine)
        messages: list[Any] = [QUESTION]
        ids = []
        for _ in range(2):
            reply = await ask(session, *messages, tools=[ADD])
            message = sent(reply)
            (call,) = message["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"a": 3}
            ids.append(call["id"])
            back = {**message, "content": message["content"] + "\n", "annotations": None}
            messages += [back, {"role": "tool", "tool_call_id": call["id"], "content": "7"}]
        reply = await ask(session, *messages, tools=[ADD])
        assert sent(reply)["content"] == "It is 7." and len(set(ids)) == 2
        assert len(session.segments()) == 1 and session.calls == 2
        check_exact(engine, session)
        # Other tools, or none, are another prompt.
        await ask(session, *messages, tools=[ADD], tool_choice="none")
        assert len(session.segments()) == 2
        assert "<tools>" not in tokenizer_of("tiny").decode(list(session.segments()[1].prompt)), (
            "tool_choice=none shows no tools"
        )

    asyncio.run(converse())


def test_calls_that_cannot_be_read_stay_text() -> None:
    async def converse() -> None:
        engine = LetterEngine(lambda p, n: "<tool_call>{oops</tool_call>")
        session = session_of(engine)
        message = sent(await ask(session, QUESTION, tools=[ADD]))
        assert "tool_calls" not in message and "oops" in message["content"]
        assert session.malformed == 1
        await ask(session, QUESTION, message, user("Again."), tools=[ADD])
        assert len(session.segments()) == 1

    asyncio.run(converse())


def test_a_template_that_drops_thinking_splits_the_session() -> None:
    async def converse() -> None:
        engine = LetterEngine(lambda p, n: "<think>\nhm\n</think>\n\nsaid", "qwen3")
        session = session_of(engine, "qwen3")
        first = await ask(session, QUESTION)
        await ask(session, QUESTION, sent(first), user("Sure?"))
        assert len(session.segments()) == 2
        check_exact(engine, session)

    asyncio.run(converse())


def test_requests_at_once_are_numbered_as_they_arrive() -> None:
    async def converse(order: list[int]) -> list[int]:
        engine = LetterEngine(told)
        engine.waits = asyncio.Event()
        session = session_of(engine)
        questions = [user(f"What is {number}+1?") for number in order]
        tasks = [asyncio.create_task(ask(session, question)) for question in questions]
        await asyncio.sleep(0)
        late, whole = session.idle
        assert late == 0 and whole < 1
        engine.waits.set()
        await asyncio.gather(*tasks)
        check_exact(engine, session)
        return [request.keys[0] for request, _ in engine.asked]

    keys = asyncio.run(converse([1, 2, 3]))
    assert keys[0] == 77, "the first has the episode's own key"
    assert keys == asyncio.run(converse([3, 2, 1])) and len(set(keys)) == 3


def test_two_requests_at_once_from_one_point_do_not_share_a_segment() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine)
        first = await ask(session, QUESTION)
        both = (ask(session, QUESTION, sent(first), user(text)) for text in ("Sure?", "Why?"))
        await asyncio.gather(*both)
        assert len(session.segments()) == 2
        check_exact(engine, session)

    asyncio.run(converse())


def test_a_request_that_is_given_up_leaves_no_trace() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine)
        first = await ask(session, QUESTION)
        engine.waits = asyncio.Event()
        task = asyncio.create_task(ask(session, QUESTION, sent(first), user("Sure?")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.waits.set()
        await ask(session, QUESTION, sent(first), user("Sure?"))
        assert len(session.segments()) == 1 and len(session.turns) == 2
        check_exact(engine, session)

    asyncio.run(converse())


def test_limits_end_a_session_and_say_why() -> None:
    async def refusal(session: Session, *messages: Any, **more: Any) -> RequestRefused:
        with pytest.raises(RequestRefused) as raised:
            await ask(session, *messages, **more)
        return raised.value

    async def converse() -> None:
        session = session_of(LetterEngine(told), limits=replace(LIMITS, max_turns=2))
        for _ in range(2):
            await ask(session, QUESTION)
        assert (await refusal(session, QUESTION)).code == "turn_limit"
        assert session.stop == session.limit == "turns"

        session = session_of(LetterEngine(told), limits=replace(LIMITS, max_tokens=20))
        await ask(session, QUESTION)
        reply = await ask(session, QUESTION)
        assert reply.choices[0].answer.stop == "length" and sum(session.turns) == 20
        assert (await refusal(session, QUESTION)).code == "token_limit"
        assert session.stop == "length" and len(session.turns) == 2

        session = session_of(LetterEngine(told), limits=replace(LIMITS, max_prompt_tokens=20))
        error = await refusal(session, user("long " * 50))
        assert error.code == "context_length_exceeded" and session.limit is None
        await ask(session, QUESTION)

        session = session_of(LetterEngine(told), positions=30)
        reply = await ask(session, QUESTION)
        assert len(reply.prompt_tokens) + len(reply.choices[0].answer.tokens) <= 30
        assert (await refusal(session, user("long " * 50))).status == 400

        session.close()
        assert (await refusal(session, QUESTION)).status == 410

    asyncio.run(converse())


def test_a_long_message_behind_a_turn_is_cut_and_the_conversation_goes_on() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine, limits=replace(LIMITS, max_reply_tokens=10))
        first = await ask(session, user("a" * 100))
        messages = [user("a" * 100), sent(first), user("b" * 100)]
        second = await ask(session, *messages)
        prompt = tokenizer_of("tiny").decode(list(second.prompt_tokens))
        assert "a" * 100 in prompt and "b" * 100 not in prompt
        assert "more tokens were left out" in prompt
        await ask(session, *messages, sent(second), user("So?"))
        assert len(session.segments()) == 1
        check_exact(engine, session)

    asyncio.run(converse())


def test_requests_choose_their_length_and_stop_strings() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine, sampling=Sampling(64, stop=("#",)))
        reply = await ask(session, QUESTION, max_completion_tokens=5, stop=["number"])
        assert len(reply.choices[0].answer.tokens) == 5
        assert engine.asked[0][1] == Sampling(5, stop=("#", "number"))
        await ask(session, QUESTION, max_tokens=1000)
        assert engine.asked[1][1].max_tokens == 64

    asyncio.run(converse())


def test_what_ends_at_a_stop_string_does_not_show_it() -> None:
    class Stops(LetterEngine):
        async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
            (answer,) = await super().sample(request, sampling)
            stopped = replace(answer, tokens=answer.tokens[:-1], logprobs=answer.logprobs[:-1])
            stopped = replace(stopped, stop="stop")
            self.answers[-1] = request, stopped
            return (stopped,)

    async def converse() -> None:
        engine = Stops(lambda p, n: "7 END")
        session = session_of(engine)
        reply = await ask(session, QUESTION, stop=" END")
        assert sent(reply)["content"] == "7"
        await ask(session, QUESTION, sent(reply), user("Sure?"), stop=" END")
        assert len(session.segments()) == 1
        check_exact(engine, session)

    asyncio.run(converse())


SETTINGS = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {"5": -100}, "seed": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_would_make_learning_wrong_are_refused_or_overridden(name: str) -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        with pytest.raises(RequestRefused, match=f"{name}=.*override_sampling") as raised:
            await ask(session_of(engine), QUESTION, **{name: SETTINGS[name]})
        assert raised.value.status == 400 and raised.value.param == name and not engine.asked
        session = session_of(engine, override_sampling=True)
        await ask(session, QUESTION, **{name: SETTINGS[name]})
        assert engine.asked[0][1] == replace(Sampling(200), max_tokens=200)

    asyncio.run(converse())


def test_the_run_s_own_settings_may_be_named() -> None:
    async def converse() -> None:
        session = session_of(LetterEngine(told), sampling=Sampling(200, temperature=0.7))
        await ask(session, QUESTION, temperature=0.7, top_p=1, logit_bias={}, presence_penalty=0)

    asyncio.run(converse())


HOSTILE: dict[str, Any] = {
    "no JSON": b"{",
    "nothing": b"",
    "deep": b"[" * 100_000,
    "no object": b"[]",
    "no messages": b"{}",
    "bytes": b"\xff\xfe",
    "a lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "empty": {"messages": []},
    "no role": {"messages": [{"content": "x"}]},
    "a role of its own": {"messages": [{"role": "god", "content": "x"}]},
    "a role that is a list": {"messages": [{"role": ["user"], "content": "x"}]},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "a number": {"messages": [{"role": "user", "content": 7}]},
    "the model speaks last": {"messages": [QUESTION, {"role": "assistant", "content": "7"}]},
    "calls that are none": {
        "messages": [{"role": "assistant", "tool_calls": [{"function": 7}]}, QUESTION]
    },
    "no tools": {"messages": [QUESTION], "tools": [{"type": "function"}]},
    "forced calls": {"messages": [QUESTION], "tools": [ADD], "tool_choice": "required"},
    "one call at a time": {"messages": [QUESTION], "parallel_tool_calls": False},
    "a schema": {"messages": [QUESTION], "response_format": {"type": "json_object"}},
    "alternatives": {"messages": [QUESTION], "logprobs": True, "top_logprobs": 5},
    "too many": {"messages": [QUESTION], "n": 1000},
    "none": {"messages": [QUESTION], "n": 0},
    "no tokens": {"messages": [QUESTION], "max_tokens": 0},
    "many stops": {"messages": [QUESTION], "stop": ["x"] * 100},
    "an empty stop": {"messages": [QUESTION], "stop": ""},
    "what nobody knows": {"messages": [QUESTION], "chat_template_kwargs": {}},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_requests_that_cannot_be_answered_are_refused_and_change_nothing(what: str) -> None:
    body = HOSTILE[what]

    async def converse() -> None:
        engine = LetterEngine(told)
        session = session_of(engine)
        first = await ask(session, QUESTION)
        with pytest.raises(RequestRefused) as raised:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            await session.complete(parse_request(data))
        assert raised.value.status == 400 and len(str(raised.value)) < 600
        await ask(session, QUESTION, sent(first), user("Sure?"))
        assert len(session.segments()) == 1 and session.requests == 2

    asyncio.run(converse())


def test_what_the_template_or_the_tokenizer_cannot_take_is_refused() -> None:
    async def converse() -> None:
        session = session_of(LetterEngine(told, "qwen3"), "qwen3")
        function = {"name": "add", "arguments": '{"a": "\\ud800"}'}
        turn = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
        with pytest.raises(RequestRefused, match="cannot be rendered") as raised:
            await ask(session, QUESTION, turn, user("Sure?"), tools=[ADD])
        assert raised.value.status == 400 and session.requests == 0

    asyncio.run(converse())


def test_an_engine_that_fails_is_no_fault_of_the_agent() -> None:
    class Broken(LetterEngine):
        async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
            raise RuntimeError("out of memory")

    async def converse() -> None:
        session = session_of(Broken(told))
        with pytest.raises(RequestRefused) as raised:
            await ask(session, QUESTION)
        assert raised.value.status == 500 and isinstance(session.failure, RuntimeError)

    asyncio.run(converse())


def test_one_session_has_so_many_requests_at_once() -> None:
    async def converse() -> None:
        engine = LetterEngine(told)
        engine.waits = asyncio.Event()
        session = session_of(engine, limits=replace(LIMITS, max_turns=999, max_tokens=10**6))
        tasks = [asyncio.create_task(ask(session, QUESTION)) for _ in range(MOST_AT_ONCE)]
        await asyncio.sleep(0)
        with pytest.raises(RequestRefused) as raised:
            await ask(session, QUESTION)
        assert raised.value.status == 429
        session.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in done)
        assert not session.segments()

    asyncio.run(converse())


@pytest.mark.parametrize("seed", range(12))
def test_whatever_an_agent_does_every_answer_is_recorded_as_it_was_sampled(seed: int) -> None:
    """Random agents: they go on, go back, rewrite, strip, ask for choices, and at once."""
    chance = random.Random(seed)

    def write(prompt: str, number: int) -> str:
        texts = ["", "  spaced  ", f"said {number}", CALL, f"x {CALL} y", "<tool_call>"]
        return chance.choice(texts)

    async def converse() -> None:
        engine = LetterEngine(write)
        session = session_of(engine, limits=replace(LIMITS, max_turns=999, max_tokens=10**6))
        talks: list[list[Any]] = [[QUESTION]]

        async def step() -> None:
            talk = list(chance.choice(talks))
            if chance.random() < 0.2 and len(talk) > 1:
                talk[1] = {"role": "assistant", "content": "not what it said"}
            choices = chance.choice([1, 1, 2])
            reply = await ask(session, *talk, n=choices, tools=[ADD])
            for choice in range(choices):
                message = sent(reply, choice)
                calls = message.get("tool_calls", ())
                results = [
                    {"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in calls
                ]
                talks.append([*talk, message, *results, user(chance.choice(["So?", "Why?"]))])

        for _ in range(12):
            await asyncio.gather(*(step() for _ in range(chance.choice([1, 1, 2]))))
        check_exact(engine, session)

    asyncio.run(converse())
