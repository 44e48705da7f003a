"""A native thread that is not there, and a process that has none."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable


class NoThread:
    """A native thread that can't be started."""

    def __init__(self, signal: int) -> None: ...

    def start(self, *work: object) -> None:
        raise OSError(11, "no thread is left")

    def close(self) -> None: ...


def holds_in_a_fork(check: Callable[[], bool]) -> bool:
    """Return whether something holds in a fork of this process, which ends then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
