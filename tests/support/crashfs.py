"""A file system on which the process ends at a chosen call, so that tests can try every call."""

from __future__ import annotations

from tests.support.faultyfs import CrashError, FaultyFileSystem


class CrashingFileSystem(FaultyFileSystem):
    """Counts the calls that change or sync something, and ends the process at one of them.

    Attributes:
        calls: such calls since ``arm``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ordered = False
        self.calls = 0
        self._crash_at: int | None = None

    def arm(self, crash_at: int | None) -> None:
        """Let call number ``crash_at`` (from 0) and all later ones fail, beginning now."""
        self.calls = 0
        self._crash_at = crash_at

    def kill(self) -> None:
        super().kill()
        self.arm(None)

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        if operation != "read":
            if self._crash_at is not None and self.calls >= self._crash_at:
                raise CrashError(f"{operation} {path}")
            self.calls += 1
