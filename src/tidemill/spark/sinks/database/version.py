"""The version of a row: one number for a checkpoint and a batch.

A later batch has a greater version, and so has any batch of a later checkpoint. Must not know:
Spark, databases.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.spark.errors import SinkError

BATCH_BITS = 31
"""Bits for the batch number: a batch every 100 ms for six years. The other bits last until 2106."""


def version(created_ms: int, batch_id: int) -> int:
    """Return the version of a batch: the second of the checkpoint's creation, then the batch.

    Args:
        created_ms: When the checkpoint was created, in milliseconds since 1970. Two checkpoints of
            one table must not be created within the same second.
        batch_id: Number of the batch.

    Raises:
        SinkError: One of the numbers is out of range.
    """
    seconds = created_ms // 1000
    if not 0 <= seconds < 1 << (63 - BATCH_BITS):
        raise SinkError(f"invalid creation time of a checkpoint: {created_ms} ms")
    if not 0 <= batch_id < 1 << BATCH_BITS:
        raise SinkError(
            f"batch number {batch_id} is too large for a version",
            hint="Start the query again with a new checkpoint.",
        )
    return seconds << BATCH_BITS | batch_id


def batch_of(number: int) -> int:
    """Return the batch number of a version."""
    return number & ((1 << BATCH_BITS) - 1)


def last_of(number: int) -> int:
    """Return the greatest version that the checkpoint of a version can have."""
    return number | ((1 << BATCH_BITS) - 1)


def created_at(number: int) -> str:
    """Return when the checkpoint of a version was created, as text for messages."""
    return f"{datetime.fromtimestamp(number >> BATCH_BITS, UTC):%Y-%m-%d %H:%M:%S} UTC"
