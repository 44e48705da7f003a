"""The native edition of ``fetch``. Must not know: Spark, queries."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidemill import native
from tidemill.spark.source.native.client import Client, ClientPool
from tidemill.spark.source.native.errors import OldFormatError
from tidemill.spark.source.native.reader import RangeReader
from tidemill.spark.source.native.settings import understand
from tidemill.spark.source.plan import DEFAULT_SETTINGS, FetchPlan
from tidemill.spark.source.planning.ranges import OffsetRange

_pool = ClientPool()


def close_idle_clients() -> None:
    """Close the connections that this process keeps for its next range."""
    _pool.clear()


def start(wanted: OffsetRange, plan: FetchPlan) -> Iterator[pa.RecordBatch] | None:
    """Return the record batches of a range, as ``fetch`` does.

    Args:
        wanted: The range.
        plan: How to read it.

    Returns:
        None if the extension was not built, or a setting is left to librdkafka. The iterator
        raises ``OldFormatError`` where the log contains an old message format.
    """
    kafka = {**DEFAULT_SETTINGS, **plan.kafka}
    extension, settings = native.load(), understand(kafka)
    if settings is None or not hasattr(extension, "Decoder"):  # None, or built from older sources
        return None
    assert extension is not None
    try:
        client = _pool.take(kafka, settings)
    except OSError:  # a certificate can't be read: librdkafka says which
        return None
    return _read(RangeReader(wanted, plan, client, extension), client, kafka)


def _read(reader: RangeReader, client: Client, kafka: dict[str, str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader.batches()
    except (GeneratorExit, OldFormatError):
        _pool.give(kafka, client)
        raise
    except BaseException:
        client.close()
        raise
    _pool.give(kafka, client)
