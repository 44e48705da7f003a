"""Reports how many records of a range a task refused, to a process on the same machine.

A task that has parsed a whole range knows whether it refused records. It says so in a datagram, so
that the process that writes dead letters need not read the range again. A report that is lost costs
only that: what no report calls clean is read. Must not know: Spark, queries, how values are parsed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import time
import weakref
from collections.abc import Iterable

from tidemill.reading.ranges import OffsetRange, TopicPartition

_LONGEST = 4096
"""Most bytes of a report. The name of a topic has at most 249."""


def send(path: str, wanted: OffsetRange, refused: int) -> None:
    """Report a range that was read and parsed to its end."""
    content = [wanted.topic, wanted.partition, wanted.start, wanted.end, refused]
    # It must not hold up the task: without the report, the range is read again.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(json.dumps(content).encode(), path)


class Reports:
    """The reports about one stream, as the process that writes its dead letters receives them.

    Attributes:
        path: The socket. It is deleted with this object.

    Raises:
        OSError: There is no folder for temporary files, or its name is too long for a socket.
    """

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="tidemill-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = os.path.join(folder, "refusals")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        weakref.finalize(self, self._socket.close)
        self._socket.bind(self.path)
        self._clean: dict[TopicPartition, list[tuple[int, int]]] = {}
        self._refused: dict[TopicPartition, list[tuple[int, int]]] = {}

    def receive(self, timeout_s: float) -> bool:
        """Take in the reports that are there; wait for the first one.

        Returns:
            Whether there was one.
        """
        deadline, count = time.monotonic() + timeout_s, 0
        while True:
            self._socket.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                data = self._socket.recv(_LONGEST)
            except (TimeoutError, BlockingIOError):
                return count > 0
            deadline, count = 0.0, count + 1
            self._take(data)

    def rest(self, wanted: OffsetRange) -> list[OffsetRange]:
        """Return the parts of a range that no report calls clean, in order."""
        found, at = [], wanted.start
        for start, end in self._clean.get((wanted.topic, wanted.partition), ()):
            if end <= at or start >= wanted.end:
                continue
            if start > at:
                found.append(OffsetRange(wanted.topic, wanted.partition, at, start))
            at = end
        if at < wanted.end:
            found.append(OffsetRange(wanted.topic, wanted.partition, at, wanted.end))
        return found

    def are_settled(self, ranges: Iterable[OffsetRange]) -> bool:
        """Whether all ranges are clean, or a task has refused a record in one of them."""
        ranges = list(ranges)
        for each in ranges:
            refused = self._refused.get((each.topic, each.partition), ())
            if any(start < each.end and end > each.start for start, end in refused):
                return True
        return not any(self.rest(each) for each in ranges)

    def forget(self, topic: str, partition: int, offset: int) -> None:
        """Forget reports about offsets below a position."""
        for known in (self._clean, self._refused):
            spans = known.get((topic, partition), [])
            known[topic, partition] = [each for each in spans if each[1] > offset]

    def _take(self, data: bytes) -> None:
        try:
            topic, partition, start, end, refused = json.loads(data)
            span, tp = (int(start), int(end)), (str(topic), int(partition))
        except (ValueError, TypeError):
            return  # not from a task
        known = self._refused if refused else self._clean
        known[tp] = _merged([*known.get(tp, []), span])


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order, with those that touch as one."""
    made: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((start, end))
    return made
