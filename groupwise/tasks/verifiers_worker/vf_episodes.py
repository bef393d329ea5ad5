"""What the process does for its parent: load an environment, list its rows, run its episodes.

An episode is a rollout of verifiers' own, turned inside out: it asks its client for the model's
next turn, and that client hands the question to the parent and waits for what was sampled there.
So everything that an environment may do between two turns stays verifiers' business.
"""

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
Ask = Callable[[list[Message], list[Message]], Awaitable[Message]]
"""From the conversation and the tools to the model's next turn."""


class Ended(Exception):
    """There are no further turns: the parent's limit on turns or tokens is reached."""


class Conversation:
    """One rollout, as a task that waits while the parent samples."""

    def __init__(self, environment: Any, row: Any) -> None:
        self.environment = environment
        self.asked: asyncio.Queue[tuple[list[Message], list[Message]]] = asyncio.Queue()
        self.turn: asyncio.Future[Message] | None = None
        self.known: list[Message] | None = None
        self.row = row
        self.task = asyncio.ensure_future(environment.rollout(row, self.ask))

    async def ask(self, messages: list[Message], tools: list[Message]) -> Message:
        if self.turn is not None and not self.turn.done():
            raise RuntimeError(
                "the environment asked for two turns at once, which is no conversation: run it "
                "behind the gateway (environment: {kind: agent})"
            )
        self.turn = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((messages, tools))
        return await self.turn

    async def reply(self) -> dict[str, Any]:
        """What to append before the next turn, or that there is none."""
        asked = asyncio.ensure_future(self.asked.get())
        try:
            await asyncio.wait([asked, self.task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asked.done():
                asked.cancel()
        if not asked.done() or asked.cancelled():
            state = self.task.result()
            return {"messages": self.environment.last_words(state), "done": True}
        messages, tools = asked.result()
        if self.known is None:
            self.known = messages
            return {"messages": messages, "tools": tools, "done": False}
        if messages[: len(self.known)] != self.known:
            raise RuntimeError(
                "the environment changed what was said before, so that the tokens which were "
                "sampled are no longer those of the conversation: run it behind the gateway "
                "(environment: {kind: agent})"
            )
        added, self.known = messages[len(self.known) :], messages
        return {"messages": added, "done": False}

    async def step(self, message: Message) -> dict[str, Any]:
        assert self.known is not None and self.turn is not None
        self.known = [*self.known, {k: v for k, v in message.items() if k != "cut"}]
        self.turn.set_result(message)
        return await self.reply()

    async def score(self) -> dict[str, Any]:
        if not self.task.done() and self.turn is not None and not self.turn.done():
            self.turn.set_exception(Ended())
        return await self.environment.score(await self.task)

    async def close(self) -> None:
        self.task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await self.task


class Environments:
    """The answers to the parent's requests: `do_NAME` answers NAME."""

    def __init__(self) -> None:
        self.environment: Any = None
        self.conversations: dict[str, Conversation] = {}
        self.complaints = Complaints()

    async def do_load(self, env: str, args: dict[str, Any]) -> None:
        if importlib.util.find_spec("verifiers.legacy") is not None:
            import vf_legacy as api
        else:
            import vf_v1 as api

        self.environment = await api.load(env, args)
        # Only now: importing verifiers removes the handlers that its logger has.
        logging.getLogger(api.LOGGER).addHandler(self.complaints)

    async def do_rows(self, split: str, first: int, count: int) -> list[Any]:
        return self.environment.rows(split, first, count)

    async def do_begin(self, episode: str, row: dict[str, Any]) -> dict[str, Any]:
        where = row.get("verifiers")
        whole = self.environment.row(where["split"], where["index"]) if where else row
        self.conversations[episode] = Conversation(self.environment, whole)
        return await self.conversations[episode].reply()

    async def do_step(self, episode: str, message: Message) -> dict[str, Any]:
        return await self.conversations[episode].step(message)

    async def do_score(self, episode: str) -> dict[str, Any]:
        return {**await self.conversations[episode].score(), "complaints": self.complaints.taken()}

    async def do_close(self, episode: str) -> None:
        conversation = self.conversations.pop(episode, None)
        if conversation is not None:
            await conversation.close()

    async def do_describe(self) -> dict[str, Any]:
        return self.environment.description

    async def do_ping(self) -> None:
        """Whether anything blocks the process."""


class Complaints(logging.Handler):
    """What verifiers logs as errors: a reward function that raises counts as 0 there."""

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.texts) < 8:
            self.texts.append(record.getMessage()[:500])

    def taken(self) -> list[str]:
        texts, self.texts = self.texts, []
        return texts
