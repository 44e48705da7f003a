"""Long work in steps, so that the caller decides what else happens in between.

A generator of steps yields None where the caller can pause, and ``Work`` for what blocks and can
run in another thread. Its result is the generator's return value. Knows no threads, no event loop
and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

R = TypeVar("R")


class Work:
    """Blocking work (a sync, a decompression) that can run in another thread.

    A caller without another thread can ignore it: the next step runs what was not run.

    Attributes:
        holds: most bytes of memory that the generator needs for the result, until it ends.
        done: whether it was run.
    """

    __slots__ = ("_run", "done", "holds")

    def __init__(self, run: Callable[[], None], holds: int = 0) -> None:
        self._run = run
        self.holds = holds
        self.done = False

    def run(self) -> None:
        """Run the work, once.

        Raises:
            TidemillError: the work failed. The caller must pass the error on with ``throw``.
        """
        if not self.done:
            self._run()
            self.done = True


Steps = Generator[Work | None, None, R]


def run_steps(steps: Steps[R]) -> R:
    """Run all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result


def elsewhere(run: Callable[[], R], holds: int = 0) -> Steps[R]:
    """Yield blocking work for another thread; return its result.

    Args:
        holds: see ``Work``.
    """
    results: list[R] = []
    work = Work(lambda: results.append(run()), holds)
    yield work
    work.run()
    return results[0]
