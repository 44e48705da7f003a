"""Keeps the last lines that a worker writes, and copies them to the broker's log with its name.

A thread for each process reads its output, so that neither a worker that writes without end nor a
log that nothing reads delays the broker's event loop. This module must not know a process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_ERRORS = (b"error: ", b"hint: ", b"warning: ")
_ROUTINE = re.compile(r"timestamp=\S+ level=(info|debug) ")

Copy = Callable[[bytes], None]
"""Writes whole lines to the broker's log. It can block."""


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits of a worker's output, in bytes. Each line counts as ``LINE_COST`` bytes more.

    Attributes:
        kept: the last lines that are kept in memory.
        line: a line; the rest of a longer one is cut off.
        burst: what is taken immediately; above it, lines are dropped and counted.
        per_second: what is taken for long.
    """

    kept: int = 1 << 20
    line: int = 16 << 10
    burst: int = 1 << 20
    per_second: int = 128 << 10


LINE_COST = 64
"""About the memory that a line takes beside its bytes."""
_READ_BYTES = 65_536
_DROP_PAUSE_S = 0.01
"""Between two reads of output that is dropped. So a worker that writes without end waits, and not
the broker."""
_NOTICE_MS = 1000
_LEFTOVER_MS = 200
_LEFTOVER_S = 2.0
"""How long the output is read after the process has ended. A child of it can still write."""


class WorkerLog:
    """The output of one worker. Threads can share it.

    Args:
        name: the worker's name, which becomes the prefix of its lines.
        copy: writes to the broker's log.
        limits: of the output.
    """

    def __init__(self, name: str, copy: Copy, limits: OutputLimits) -> None:
        self.limits = limits
        self._prefix = f"[{name}] ".encode()
        self._copy = copy
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._end = 0
        self._known: frozenset[bytes] = frozenset()
        self._lock = threading.Lock()

    def add(self, lines: list[bytes]) -> None:
        """Keep lines, and copy them to the broker's log."""
        with self._lock:
            self._lines.extend(lines)
            self._end += len(lines)
            self._size += sum(map(len, lines)) + LINE_COST * len(lines)
            while self._size > self.limits.kept:
                self._size -= len(self._lines.popleft()) + LINE_COST
        if any(line.startswith(b"error: ") and line not in self._known for line in lines):
            self._known = frozenset()  # the hint of a new error may be an old one
        new = [line for line in lines if line not in self._known]
        if new:
            self._copy(b"".join(b"%b%b\n" % (self._prefix, line) for line in new))

    def know_errors(self, start: int) -> None:
        """Copy the errors in the lines from a number on no more: the broker's log has them."""
        lines, _ = self.after(start)
        self._known = frozenset(line for line in lines[-100:] if line.startswith(_ERRORS))

    def forget_errors(self) -> None:
        """Copy all lines again."""
        self._known = frozenset()

    def after(self, number: int) -> tuple[list[bytes], int]:
        """Return the kept lines from a line's number on, and the number of the next line."""
        with self._lock:
            first = self._end - len(self._lines)
            return list(itertools.islice(self._lines, max(number - first, 0), None)), self._end

    def last(self, count: int) -> tuple[list[bytes], int]:
        """Return the last lines, and the number of the next line."""
        with self._lock:
            start = self._end - count
        return self.after(start)

    def reason(self, start: int) -> str:
        """Return the last error in the lines from a number on, or their last line that has text.

        Lines about its work are left out: a worker that was killed wrote no reason.
        """
        lines, _ = self.after(start)
        texts = [line.decode(errors="replace").strip() for line in lines[-100:]]
        errors = [text for text in texts if text.startswith("error: ")]
        texts = errors or [text for text in texts if text and not _is_routine(text)]
        return texts[-1][:500] if texts else ""


def _is_routine(line: str) -> bool:
    """Return whether a line announces an address, or is of a log and no warning."""
    return line.startswith('{"event":') or _ROUTINE.match(line) is not None


class OutputReader:
    """Reads the output of one process in a thread.

    Args:
        log: takes the lines.

    Attributes:
        writable: the end of a pipe that the process writes to. The caller closes it.

    Raises:
        OSError: the system has no descriptors or threads left.
    """

    def __init__(self, log: WorkerLog) -> None:
        self._log = log
        self._allowance = float(log.limits.burst)
        self._at = time.monotonic()
        self._part = b""
        self._is_cut = False
        self._dropped_lines = self._dropped_bytes = 0
        self._thread = threading.Thread(target=self._run, name="worker-output", daemon=True)
        opened: list[int] = []
        try:
            self._fd, self.writable = pipe = os.pipe()
            opened += pipe
            self._wake, self._end = pipe = os.pipe()
            opened += pipe
            self._thread.start()
        except (OSError, RuntimeError) as error:
            for fd in opened:
                os.close(fd)
            raise OSError(str(error)) from error

    def finish(self, timeout_s: float) -> None:
        """Report that the process has ended, and wait until its last lines are read."""
        os.close(self._end)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake)
        deadline = None
        while deadline is None or time.monotonic() < deadline:
            pause = _LEFTOVER_MS if deadline else _NOTICE_MS if self._dropped_bytes else None
            ready = dict(poll.poll(pause))
            if self._wake in ready:
                poll.unregister(self._wake)
                deadline = time.monotonic() + _LEFTOVER_S
            if self._fd in ready:
                chunk = os.read(self._fd, _READ_BYTES)
                if not chunk:
                    break
                self._take(chunk)
            elif not ready:
                if deadline:
                    break
                self._report_dropped()
        if self._part:
            self._log.add([self._part])
        self._report_dropped()
        os.close(self._fd)
        os.close(self._wake)

    def _take(self, chunk: bytes) -> None:
        limits = self._log.limits
        now = time.monotonic()
        gained = (now - self._at) * limits.per_second
        self._allowance, self._at = min(self._allowance + gained, limits.burst), now
        # Once lines are dropped, the worker's next second is awaited, or it would be a notice for
        # every few lines.
        needed = min(limits.per_second, limits.burst) if self._dropped_bytes else 1
        if self._allowance < needed:
            self._drop(chunk)
            time.sleep(_DROP_PAUSE_S)
            return
        self._report_dropped()
        *whole, part = chunk.split(b"\n")
        lines = []
        for number, line in enumerate(whole):
            if self._allowance <= 0:
                self._drop(b"\n".join([*whole[number:], part]))
                break
            lines.append(self._ended(line))
        else:
            self._grow(part)
        if lines:
            self._log.add(lines)

    def _grow(self, part: bytes) -> None:
        """Take over a part of a line, up to the longest line."""
        left = self._log.limits.line - len(self._part)
        self._is_cut = self._is_cut or len(part) > left
        self._part += part[:left]
        self._allowance -= len(part)

    def _ended(self, rest: bytes) -> bytes:
        """Return the line that ends with ``rest``."""
        self._grow(rest)
        self._allowance -= LINE_COST
        line = self._part.removesuffix(b"\r") + ("…".encode() if self._is_cut else b"")
        self._part, self._is_cut = b"", False
        return line

    def _drop(self, chunk: bytes) -> None:
        """Drop what ends the present line and what follows, up to the start of a line."""
        self._dropped_lines += chunk.count(b"\n")
        self._dropped_bytes += len(chunk)
        self._part, self._is_cut = b"", not chunk.endswith(b"\n")

    def _report_dropped(self) -> None:
        if self._dropped_bytes:
            rate = self._log.limits.per_second
            text = (
                f"... {self._dropped_lines} lines ({self._dropped_bytes} bytes) were dropped: "
                f"the worker writes more than {rate} bytes a second"
            )
            self._dropped_lines = self._dropped_bytes = 0
            self._log.add([text.encode()])


def to_stderr(data: bytes) -> None:
    """Write to stderr. What can't be written is lost: a log must not stop the work."""
    with contextlib.suppress(OSError, ValueError):
        fd = sys.stderr.fileno()
        while data:
            data = data[os.write(fd, data) :]
