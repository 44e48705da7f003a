"""Run long work in slices of the event loop, and its blocking parts on threads, in bounded memory.

All long work takes turns: one slice of ``SLICE_MS`` in each turn of the loop, whichever request it
belongs to. So a request waits for one slice at most, and short work is not behind long work.
Housekeeping works in the background: it pauses for as long as it worked. Knows steps (see
``log.steps``), and nothing of what they do.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from tidemill.engine.errors import BrokerStoppingError
from tidemill.errors import TidemillError
from tidemill.log.steps import Steps, Work

SLICE_MS = 2
MEDIUM_BYTES = 1 << 23
"""Work that holds up to this much memory runs beside other work of this kind."""
MEDIUM_AT_ONCE = 4
"""Other work that needs memory runs one after the other."""

R = TypeVar("R")


class Slices:
    """Runs steps for all requests of an engine, and for its housekeeping."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # first come, first served
        self._medium = asyncio.Semaphore(MEDIUM_AT_ONCE)
        self._large = asyncio.Semaphore(1)
        self._stopping = False

    def stop(self) -> None:
        """End all work with an error, at its next slice."""
        self._stopping = True

    async def run(self, steps: Steps[R], *, in_background: bool = False) -> R:
        """Run the steps and return their result.

        Args:
            in_background: whether to take half of the loop's time at most, and none of the memory
                that requests share.

        Raises:
            BrokerStoppingError: the engine is stopping.
            TidemillError: a step failed.
        """
        held: asyncio.Semaphore | None = None
        error: TidemillError | None = None
        try:
            while True:
                work = await self._slice(steps, error)
                if isinstance(work, tuple):
                    return work[0]
                error = None
                if work is None:
                    if in_background:
                        await asyncio.sleep(SLICE_MS / 1000)
                    continue
                if work.holds and not in_background:
                    if held is not None:
                        # The steps have dropped the smaller result. Work that waits for more must
                        # not keep others from theirs.
                        held.release()
                        held = None
                    wanted = self._medium if work.holds <= MEDIUM_BYTES else self._large
                    await wanted.acquire()
                    held = wanted
                error = await _run_elsewhere(work)
        finally:
            steps.close()
            if held is not None:
                held.release()

    async def _slice(self, steps: Steps[R], error: TidemillError | None) -> Work | tuple[R] | None:
        """Run steps until the slice ends or one needs a thread.

        Args:
            error: of the last work, for the steps.

        Returns:
            The work for a thread, or None; the result in a tuple if the steps have ended.
        """
        loop = asyncio.get_running_loop()
        async with self._turn:
            # Whatever else is ready comes between two slices.
            await asyncio.sleep(0)
            if self._stopping:
                raise BrokerStoppingError("the broker is stopping")
            ends = loop.time() + SLICE_MS / 1000
            try:
                work = next(steps) if error is None else steps.throw(error)
                while work is None and loop.time() < ends:
                    work = next(steps)
            except StopIteration as end:
                return (end.value,)
            return work


async def _run_elsewhere(work: Work) -> TidemillError | None:
    """Run work on a thread; return its error."""
    try:
        await asyncio.get_running_loop().run_in_executor(None, work.run)
    except TidemillError as error:
        return error
    return None
