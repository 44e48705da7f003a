"""A broker that notes when produce requests, or messages of queues, pass each step inside of it.

``steps`` runs it as ``python -m bench.traced serve ...``. It wraps methods of the broker, so it
knows the inside of the broker. ``sync_rule`` and ``floor`` use parts of the broker too.
"""

from __future__ import annotations

import atexit
import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, time
from typing import Any

from tidemill.cli.main import main
from tidemill.engine.flusher import Flusher
from tidemill.engine.journaling import Journaling
from tidemill.engine.queues.live.dispatch import Dispatcher
from tidemill.engine.queues.publish import Batches
from tidemill.net.link import Link
from tidemill.protocols.kafka.session import KafkaSession

OUT, WHAT = "BENCH_STEPS", "BENCH_TRACED"
"""Names of the variables with the file that gets the times, and with what is followed."""
REQUEST = ("append", "turn", "journal free", "journal", "release", "answer")
MESSAGE = ("turn", "append", "journal free", "journal", "confirm", "dispatch", "deliver")


class Steps:
    """The notes. One request or message at a time is followed.

    Args:
        names: The steps in their order.

    Attributes:
        found: The times of the steps in seconds, by name.
        seconds: What happened in each second of the clock: second -> name -> number.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self.found: dict[str, list[float]] = {name: [] for name in names}
        self.seconds: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._journal_began = 0.0
        self._times: list[float] | None = None
        self._last = 0.0
        self._followed: object = None

    def begin(self, session: object = None) -> None:
        """Note that bytes or a message were received, unless another one is on its way."""
        if self._times is None:
            self._times, self._followed, self._last = [], session, perf_counter()

    def abandon(self, session: object) -> None:
        """Stop following if this connection received nothing that waits for the disk."""
        if not self._times and self._followed is session:
            self._times = None

    def end(self, name: str, of: object = None, then: object = None) -> None:
        """Note that a step has ended, if it is the one that the request is in.

        Args:
            of: What has passed the step, if it is not the whole broker.
            then: What to follow from now on.
        """
        if self._times is None or (of is not None and of is not self._followed):
            return
        if self._names[len(self._times)] != name:
            if name == "release":  # it did not wait for the journal
                self._times = None
            return
        now = perf_counter()
        self._times.append(now - self._last)
        self._last = now
        self._followed = then or self._followed
        if len(self._times) == len(self._names):
            for each, took in zip(self._names, self._times, strict=True):
                self.found[each].append(took)
            self._times = None

    def count(self, name: str, number: float = 1) -> None:
        """Count something in the current second."""
        self.seconds[int(time())][name] += number

    def round_began(self) -> None:
        """Note that a round of the journal was started."""
        self._journal_began = perf_counter()

    def round_ended(self) -> None:
        """Note that it was written and reported."""
        took = perf_counter() - self._journal_began
        self.count("rounds")
        self.count("journal s", took)
        second = self.seconds[int(time())]
        second["slowest round s"] = max(second["slowest round s"], took)

    def write(self) -> None:
        """Write all to the file."""
        Path(os.environ[OUT]).write_text(json.dumps({"steps": self.found, "seconds": self.seconds}))


def _nothing(*_: Any) -> None:
    return None


def _wrap(
    owner: Any, name: str, before: Callable[..., None], after: Callable[..., None] = _nothing
) -> None:
    """Call functions before and after a method."""
    inner = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        before(*arguments)
        found = inner(*arguments, **named)
        after(*arguments)
        return found

    setattr(owner, name, wrapped)


def trace_messages(steps: Steps) -> None:
    """Wrap the methods between which the steps of a message are."""
    _wrap(Batches, "add", lambda *_: steps.begin())
    _wrap(Batches, "flush", lambda *_: steps.end("turn"), lambda *_: steps.end("append"))
    _wrap(Journaling, "start", lambda *_: steps.end("journal free"))
    _wrap(Journaling, "_written", lambda *_: steps.end("journal"))
    _wrap(Dispatcher, "wake", lambda *_: steps.end("confirm"))
    _wrap(
        *(Dispatcher, "_hand_over"),
        lambda *_: steps.end("dispatch"),
        lambda *_: steps.end("deliver"),
    )


def trace_requests(steps: Steps) -> None:
    """Wrap the methods between which the steps of a request are."""

    def answered(session: Any, run: Any, size: int) -> None:
        steps.count("requests", run.count)
        steps.count("runs")
        steps.end("append", session, then=run)

    def written(*_: Any) -> None:
        steps.round_ended()
        steps.end("journal")

    def sent(link: Any, *_: Any) -> None:
        steps.count("sends")
        steps.end("answer", link._session)

    _wrap(
        KafkaSession,
        "received",
        lambda session, *_: steps.begin(session),
        lambda session, *_: steps.abandon(session),
    )
    _wrap(KafkaSession, "_answer_run", _nothing, answered)
    _wrap(Flusher, "_dispatch", lambda _: steps.end("turn"))
    _wrap(Journaling, "start", lambda *_: steps.end("journal free"), lambda *_: steps.round_began())
    _wrap(Journaling, "_written", written)
    _wrap(
        KafkaSession,
        "_complete_run",
        lambda session, _, run: steps.end("release", run, then=session),
    )
    _wrap(Link, "_send", _nothing, sent)


if __name__ == "__main__":
    if os.environ[WHAT] == "message":
        noted = Steps(MESSAGE)
        trace_messages(noted)
    else:
        noted = Steps(REQUEST)
        trace_requests(noted)
    atexit.register(noted.write)
    main()
