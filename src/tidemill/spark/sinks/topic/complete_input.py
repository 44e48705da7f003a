"""Detects whether a Python worker received all rows of its task.

Rows come to a worker as an Arrow stream over a socket. If the task fails before it has sent all
rows (an error in the query, a stopped query, a killed JVM), the JVM closes the socket, and PySpark
takes that for the end of the rows: for pyarrow, a stream that ends between two batches is complete.
Most functions are not affected, because Spark discards their result. A sink that commits its own
transaction would commit a part of the rows, and the retried task would find its work done. So this
module watches what PySpark reads: a stream without its end marker ends in the middle of a read.

Must not know: sinks, Kafka, options. Source: Arrow columnar format, "IPC Streaming Format".
"""

from __future__ import annotations

from typing import IO

from tidemill.spark.base.pyspark_private import watch_input
from tidemill.spark.errors import DeliveryError


class WatchedStream:
    """Reads from a stream, and records whether the stream ended too early.

    Attributes:
        is_truncated: Whether a read returned less than it asked for.
    """

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.is_truncated = False
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes, or fewer at the end of the stream. Blocks until then."""
        data = self._stream.read(size)
        if len(data) < size:
            self.is_truncated = True
        return data

    def readable(self) -> bool:
        """Return True."""
        return True


_current: WatchedStream | None = None
_is_watching = False


def watch() -> None:
    """Watch what PySpark reads in this worker. Call it before a task's rows are read."""
    global _is_watching
    if not _is_watching:
        watch_input(_watched)
        _is_watching = True


def _watched(stream: IO[bytes]) -> WatchedStream:
    global _current
    _current = WatchedStream(stream)
    return _current


def ensure_complete() -> None:
    """Check that no rows are missing. Call it after the task's rows have been read."""
    if _current is None:
        raise DeliveryError(
            "can't detect whether all rows of the task were received: this release of PySpark "
            "is not supported",
            hint="Use a release of PySpark that this release of tidemill supports, or set "
            "delivery to at-least-once.",
        )
    if _current.is_truncated:
        raise DeliveryError(
            "the rows of the task are incomplete: none of them is written",
            hint="The query failed or was stopped; its own error is the cause. A restart "
            "writes all rows.",
        )
