"""Runs a supervisor over small real processes, on the broker's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from tests.support.processes import LEAST_PATIENCE_S
from tidemill.workers.spec import Timing, WorkerSpec
from tidemill.workers.supervisor import Supervisor, WorkerStatus

FAST = Timing(first_pause=0.01, longest_pause=0.04, steady=60, look=0.01, leftovers=5)


def python(name: str, program: str, *arguments: str, **fields: Any) -> WorkerSpec:
    """Return a worker that runs a program in Python."""
    return WorkerSpec(name, [sys.executable, "-c", program, *arguments], **fields)


class Log:
    """The broker's log: what the workers have written, with their names."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    @property
    def lines(self) -> list[str]:
        return self.data.decode().splitlines()


@contextlib.asynccontextmanager
async def supervised(
    specs: Sequence[WorkerSpec], timing: Timing = FAST, log: Log | None = None
) -> AsyncIterator[Supervisor]:
    """Run workers in the block, and stop them after it."""
    supervisor = Supervisor(specs, (log or Log()).write, timing)
    supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(LEAST_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


def only(supervisor: Supervisor) -> WorkerStatus:
    """Return the status of the only worker."""
    (status,) = supervisor.statuses()
    return status


def lives(pid: int) -> bool:
    """Return whether a process runs. One that was not waited for has ended too."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
