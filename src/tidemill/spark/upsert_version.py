"""One number for a batch: a later batch has a higher one, and any batch of a later checkpoint.

Must not know: Spark, databases.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.errors import SinkError
from tidemill.spark.options import noted

BATCH_BITS = 31
"""Enough for a batch every 100 ms over six years; what is left of 63 bits lasts until 2106."""


def version(created_ms: int, batch_id: int) -> int:
    """The version of a batch's rows: the checkpoint's second of creation, then the batch.

    Args:
        created_ms: milliseconds since 1970. Two checkpoints of one table must not be made within
            the same second.
        batch_id: number of the batch.

    Raises:
        SinkError: a number is out of its range.
    """
    seconds = created_ms // 1000
    if not 0 <= seconds < 1 << (63 - BATCH_BITS):
        raise noted(SinkError(f"a checkpoint can't have been made {created_ms} ms after 1970"))
    if not 0 <= batch_id < 1 << BATCH_BITS:
        raise noted(
            SinkError(
                f"batch {batch_id} is beyond what a version can hold",
                hint="Start the query afresh, with a new checkpoint.",
            )
        )
    return seconds << BATCH_BITS | batch_id


def batch_of(number: int) -> int:
    """The batch of a version."""
    return number & ((1 << BATCH_BITS) - 1)


def last_of(number: int) -> int:
    """The greatest version that the checkpoint of a version can have."""
    return number | ((1 << BATCH_BITS) - 1)


def made_at(number: int) -> str:
    """When the checkpoint of a version was made, for messages."""
    return f"{datetime.fromtimestamp(number >> BATCH_BITS, UTC):%Y-%m-%d %H:%M:%S} UTC"
