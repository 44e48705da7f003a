"""``tidemill`` that kills itself at a chosen write, so that every step of a transaction is tried.

``python -m tests.crash.transactions.dying_serve serve ...`` works like ``python -m tidemill serve``
until the file named by ``CRASH_STEP`` holds ``<number> <before|half>``: the write of that number
(from 0, counted from then on) to a log that takes part in transactions is then left out or done by
half, and the process is gone. It leaves the log's folder in ``<CRASH_STEP>.hit``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tidemill.cli.main import main
from tidemill.log import store
from tidemill.log.disk.files import Buffer, RawFile, RealFile, RealFileSystem

STEP = Path(os.environ.get("CRASH_STEP", ""))
_LOGS = ("__transaction_state-", "__consumer_offsets-", "out-")


class Countdown:
    """The number of writes that are left."""

    armed = ""
    left = 0

    @classmethod
    def due(cls) -> str:
        """The way in which the next write is the last one; empty if it is not the last."""
        armed = STEP.read_text() if STEP.exists() else ""
        number, _, how = armed.partition(" ")
        if armed != cls.armed:
            cls.armed, cls.left = armed, int(number or 0)
        if not how:
            return ""
        cls.left -= 1
        return how if cls.left < 0 else ""


class DyingFile(RealFile):
    """A log whose writes are counted."""

    __slots__ = ("_folder",)

    def __init__(self, fd: int, folder: str) -> None:
        super().__init__(fd)
        self._folder = folder

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> int:
        how = Countdown.due()
        if how:
            Path(f"{STEP}.hit").write_text(self._folder)
            if how == "half":
                data = b"".join(buffers)
                super().pwrite([data[: len(data) // 2]], position)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pwrite(buffers, position)


class DyingFileSystem(RealFileSystem):
    """The real one, but for the logs of transactions."""

    def open(self, path: str, *, create: bool = False) -> RawFile:
        folder = Path(path).parent.name
        if not path.endswith(".log") or not folder.startswith(_LOGS):
            return super().open(path, create=create)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DyingFile(os.open(path, flags, 0o644), folder)


if __name__ == "__main__":
    store.RealFileSystem = DyingFileSystem  # type: ignore[attr-defined]
    main()
