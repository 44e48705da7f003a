"""A broker that notes when messages pass each step from publish to consumer.

``steps`` runs it as ``python -m bench.queues.traced serve ...``. It wraps methods of the engine, so
it knows the inside of the engine, and nothing else of the benchmarks does.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from tidemill.cli.main import main
from tidemill.engine.journaling import Journaling
from tidemill.engine.queues.live.dispatch import Dispatcher
from tidemill.engine.queues.publish import Batches

OUT = "BENCH_STEPS"
"""Names the variable with the file that gets the times."""
STEPS = ("turn", "append", "journal free", "journal", "confirm", "dispatch", "deliver")


class Steps:
    """The times of the steps in seconds, by name. One message at a time is followed."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {name: [] for name in STEPS}
        self._last = 0.0
        self._next = len(STEPS)

    def begin(self) -> None:
        """Note that a message was published, unless another one is on its way."""
        if self._next == len(STEPS):
            self._next = 0
            self._last = perf_counter()

    def end(self, name: str) -> None:
        """Note that a step has ended, if it is the one that the message is in."""
        if self._next < len(STEPS) and STEPS[self._next] == name:
            now = perf_counter()
            self.found[name].append(now - self._last)
            self._last = now
            self._next += 1

    def write(self) -> None:
        """Write the times to the file."""
        Path(os.environ[OUT]).write_text(json.dumps(self.found))


def trace(steps: Steps) -> None:
    """Wrap the methods between which the steps are."""

    def wrap(owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
        inner = getattr(owner, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            before()
            found = inner(*arguments, **named)
            after()
            return found

        setattr(owner, name, wrapped)

    def nothing() -> None:
        return None

    wrap(Batches, "add", steps.begin, nothing)
    wrap(Batches, "flush", lambda: steps.end("turn"), lambda: steps.end("append"))
    wrap(Journaling, "start", lambda: steps.end("journal free"), nothing)
    wrap(Journaling, "_written", lambda: steps.end("journal"), nothing)
    wrap(Dispatcher, "wake", lambda: steps.end("confirm"), nothing)
    wrap(
        Dispatcher,
        "_hand_over",
        lambda: steps.end("dispatch"),
        lambda: steps.end("deliver"),
    )


if __name__ == "__main__":
    noted = Steps()
    trace(noted)
    atexit.register(noted.write)
    main()
