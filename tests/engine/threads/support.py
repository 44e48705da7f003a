"""A native thread that is not there."""

from __future__ import annotations


class NoThread:
    """A native thread that can't be started."""

    def __init__(self, signal: int) -> None: ...

    def start(self, *work: object) -> None:
        raise OSError(11, "no thread is left")

    def close(self) -> None: ...
