"""Work spread over several servers: it goes to who is free, and one that fails is survived.

A server that fails is left aside for a while and its work goes to the others. When none is left
the run ends with a message, and the same command goes on later from the last checkpoint.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from groupwise.errors import ModelError
from groupwise.serve.client import Busy, Gone

log = logging.getLogger("groupwise")

ASIDE_SECONDS = 30.0
"""How long a server that failed is left alone before it is tried again."""
MOST_FAILURES = 3
"""Of each server, for one batch of work: work that kills them all ends the run."""

Server = TypeVar("Server")
Offer = TypeVar("Offer")
Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass
class Link(Generic[Server, Offer]):
    """A server, and how it is. `offer` is None until it has been reached, and while it is gone.

    `aside_seconds`: how long it is left alone when it fails, where ASIDE_SECONDS is wrong.
    """

    url: str
    server: Server
    aside_seconds: float | None = None
    offer: Offer | None = None
    try_at: float = 0.0
    reason: str = ""


def _last_checkpoint(text: str) -> ModelError:
    return ModelError(f"{text}: it goes on from the last checkpoint")


class Links(Generic[Server, Offer]):
    """`reach(server)` makes one ready and says what it offers; it raises Gone, Busy, ModelError.

    `what` is what messages call a server, `mend` how to get one when none is left, and `error` what
    is raised then.
    """

    def __init__(
        self,
        links: Sequence[Link[Server, Offer]],
        reach: Callable[[Server], Offer],
        what: str,
        mend: str,
        error: Callable[[str], ModelError] = _last_checkpoint,
    ) -> None:
        self.links = list(links)
        self.reach, self.what, self.mend, self.error = reach, what, mend, error

    def begin(self) -> None:
        """Reach every server. Here a wrong token or model ends the run; later on it does not."""
        with ThreadPoolExecutor(len(self.links)) as pool:
            for task in [pool.submit(self._begin_one, link) for link in self.links]:
                task.result()
        self.ready()

    def _begin_one(self, link: Link[Server, Offer]) -> None:
        try:
            link.offer = self.reach(link.server)
        except (Gone, Busy) as error:
            self._put_aside(link, str(error))

    def ready(self) -> list[tuple[Link[Server, Offer], Offer]]:
        """Servers that work. Those left aside are tried when due, and at once if none is left."""
        now = time.monotonic()
        none_left = all(link.offer is None for link in self.links)
        for link in self.links:
            if link.offer is None and (none_left or now >= link.try_at):
                try:
                    link.offer = self.reach(link.server)
                    log.info("%s %s is back", self.what, link.url)
                except (Gone, Busy, ModelError) as error:
                    link.try_at = time.monotonic() + ASIDE_SECONDS
                    link.reason = str(error)
        found = [(link, link.offer) for link in self.links if link.offer is not None]
        if not found:
            raise self._nobody()
        return found

    def spread(
        self, work: Sequence[Work], do: Callable[[Server, Offer, Work], Result]
    ) -> list[Result]:
        """`do` all of the work, each piece at a server that is free; the results in order."""
        waiting = deque(range(len(work)))
        found: dict[int, Result] = {}
        failures = 0
        ready = self.ready()
        while len(found) < len(work):
            with ThreadPoolExecutor(len(ready)) as pool:
                tasks = [
                    pool.submit(self._work, link, offer, work, do, waiting, found)
                    for link, offer in ready
                ]
            failures += sum(task.result() for task in tasks)
            if len(found) < len(work):
                if failures > MOST_FAILURES * len(self.links):
                    raise self._nobody()
                ready = self.ready()
        return [found[index] for index in range(len(work))]

    def everywhere(self, do: Callable[[Server, Offer], None]) -> None:
        """`do` the same at every server that works, at once; those that fail are left aside."""

        def one(link: Link[Server, Offer], offer: Offer) -> None:
            try:
                do(link.server, offer)
            except (Gone, Busy) as error:
                self._put_aside(link, str(error))

        ready = self.ready()
        with ThreadPoolExecutor(len(ready)) as pool:
            for task in [pool.submit(one, *pair) for pair in ready]:
                task.result()
        self.ready()

    def _work(
        self,
        link: Link[Server, Offer],
        offer: Offer,
        work: Sequence[Work],
        do: Callable[[Server, Offer, Work], Result],
        waiting: deque[int],
        found: dict[int, Result],
    ) -> int:
        """Do what waits until nothing does, or until the server fails; how often it failed."""
        while True:
            try:
                index = waiting.popleft()
            except IndexError:
                return 0
            try:
                found[index] = do(link.server, offer, work[index])
            except (Gone, Busy) as error:
                waiting.append(index)
                self._put_aside(link, str(error))
                return 1
            except BaseException:
                waiting.clear()  # the run cannot go on: the others need not either
                raise

    def _put_aside(self, link: Link[Server, Offer], reason: str) -> None:
        link.offer, link.reason = None, reason
        seconds = ASIDE_SECONDS if link.aside_seconds is None else link.aside_seconds
        link.try_at = time.monotonic() + seconds
        again = f"tried again every {seconds:g} s" if seconds else "started again"
        log.warning(
            "%s %s is gone (%s): its work goes to the others, and it is %s",
            self.what,
            link.url,
            reason,
            again,
        )

    def _nobody(self) -> ModelError:
        reasons = "; ".join(f"{link.url}: {link.reason}" for link in self.links)
        return self.error(
            f"no {self.what} is left ({reasons}). {self.mend}, and run the same command again"
        )
