"""Declares workers: what the supervisor runs, and with which pauses.

It is imported with the settings, so it must not import asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

WORKER_VARIABLE = "TIDEMILL_WORKER"
"""The environment variable that tells a worker its name."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker that is to run.

    Attributes:
        name: identifies it in commands and in the log.
        command: an absolute path of a program, and its arguments.
        wanted: whether there is something to do for it. It is asked until that is so.
        stop_s: how long it can take to end after SIGTERM, in seconds. Then it is killed.
        env: variables besides those of the broker.
    """

    name: str
    command: Sequence[str]
    wanted: Callable[[], bool] = lambda: True
    stop_s: float = 8.0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """Pauses of the supervisor, in seconds.

    Attributes:
        first_pause: between the end of a worker and its first restart; each further one is twice
            as long.
        longest_pause: the longest one.
        steady: a worker that ran for so long has started well, so its next pause is the first one.
        look: how often the supervisor asks whether a worker is wanted.
        leftovers: how long the children of a worker that has ended can run on.
    """

    first_pause: float = 1.0
    longest_pause: float = 60.0
    steady: float = 60.0
    look: float = 0.5
    leftovers: float = 5.0
