"""A fork of a process has none of its native threads, and ends without them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemill.native import extension

THREADS: dict[str, tuple[Callable[[int], Any], tuple[object, ...], tuple[int, int]]] = {
    "entries": (extension.EntryThread, (bytearray(56), [bytes(3 << 20), b""], 0), (0, 0)),
    "syncs": (extension.SyncThread, (), (1, 0)),
}
"""What makes a thread, the arguments of its work after the file, and the result."""


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


@pytest.mark.parametrize("kind", list(THREADS))
def test_a_fork_has_no_thread_and_ends_without_it(signal: int, tmp_path: Path, kind: str) -> None:
    make, arguments, done = THREADS[kind]
    thread = make(signal)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    work = (file, *arguments) if arguments else ([(file, 0, 0)],)

    def check() -> bool:
        nonlocal thread
        assert thread.result() is None
        with pytest.raises(RuntimeError):
            thread.start(*work)
        thread.close()
        del thread
        other = os.eventfd(0)
        own = make(other)
        own.start(*work)
        os.eventfd_read(other)
        return bool(own.result() == done)

    for is_idle in (True, False):
        thread.start(*work)
        if is_idle:
            os.eventfd_read(signal)
            assert thread.result() == done
        assert holds_in_a_fork(check)
    os.eventfd_read(signal)
    assert thread.result() == done
    os.close(file)
