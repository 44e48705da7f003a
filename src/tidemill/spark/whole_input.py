"""Whether a task's rows are all there, or their stream broke off.

Rows come to a Python worker as an Arrow stream over a socket. Where the task fails before it has
sent them all - an error in the query above, a stopped query, a killed JVM - the JVM closes the
socket, and PySpark takes that for the end of the rows: pyarrow calls a stream complete that ends
between two batches. For most functions that does no harm, because their result is thrown away. A
sink that commits by itself would commit a part, and the task that is run again would find its work
done. So what PySpark reads is watched: a stream that ends without its end mark ends in the middle
of a read.

Must not know: sinks, Kafka, options. Source: Arrow columnar format, "IPC Streaming Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from tidemill.errors import DeliveryError
from tidemill.spark.options import noted


class WatchedStream:
    """Reads from a stream, and remembers whether it ended where more was wanted.

    Attributes:
        broken_off: a read got less than it asked for.
    """

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self.broken_off = False
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """As the stream's own: blocks until there is as much, or the stream has ended."""
        data = self._stream.read(size)
        if len(data) < size:
            self.broken_off = True
        return data

    def readable(self) -> bool:
        """It is."""
        return True


_current: WatchedStream | None = None
_is_watching = False


def watch() -> None:
    """From now on, watch what PySpark reads in this process; for a worker, before its task."""
    global _is_watching
    if _is_watching:
        return
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    serializer: Any = ArrowStreamSerializer
    load_stream = serializer.load_stream

    def load_watched(self: Any, stream: IO[bytes]) -> Iterator[Any]:
        global _current
        _current = WatchedStream(stream)
        yield from load_stream(self, _current)

    serializer.load_stream = load_watched
    _is_watching = True


def ensure_whole() -> None:
    """Call when the task's rows have been read to their end.

    Raises:
        DeliveryError: they broke off; or this PySpark hands rows over in another way, so that
            nobody can tell.
    """
    if _current is None:
        raise noted(
            DeliveryError(
                "can't tell whether all rows of the task have come: this release of PySpark reads "
                "them in a way that is not known here",
                hint="Use a release of PySpark that this release of tidemill was tested with, or "
                "set delivery to at-least-once.",
            )
        )
    if _current.broken_off:
        raise noted(
            DeliveryError(
                "the rows of the task broke off: nothing of it is written",
                hint="The reason is the query's own error, or that it was stopped. A restart "
                "writes all.",
            )
        )
