"""The version of a row: one number for a checkpoint and a batch.

A later batch has a greater version, and so has any batch of a later checkpoint. A batch that is
older than what its table contains would be ignored, so it is refused. Must not know: Spark,
databases.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.spark.errors import CheckpointRestoredError, SinkError
from tidemill.spark.sinks.database.rows import ROW_VERSIONS, VERSION, Layout

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


def check_versions(
    target: str,
    latest: int | None,
    number: int,
    layout: Layout,
    *,
    is_first: bool,
    is_new: bool,
    of_checkpoint: int | None = None,
) -> None:
    """Check that a batch is not older than what its table contains.

    Args:
        latest: The greatest version in it, or None if it is empty.
        of_checkpoint: The greatest version of the batch's checkpoint in the table, if it is known.
    """
    if latest is None:
        return
    if layout.versioned:
        if latest >= ROW_VERSIONS:
            raise _mixed_versions(target)
        return
    if is_first and latest > number:
        raise _newer_checkpoint(target, latest, number)
    last = latest if of_checkpoint is None else of_checkpoint
    if is_new and number <= last <= last_of(number):
        raise CheckpointRestoredError(
            f"{target} contains rows of batch {batch_of(last)}, and the checkpoint "
            f"has planned batch {batch_of(number)} again: it was restored from a backup, "
            "or copied",
            hint="Start the query with a new checkpoint: tidemill pipeline reset.",
        )


def _mixed_versions(target: str) -> SinkError:
    return SinkError(
        f"{target} contains rows whose version is that of a batch; rows with a "
        f"{VERSION} of their own would be ignored because they look older",
        hint="Use a new table, or rebuild this one: tidemill pipeline rebuild.",
    )


def _newer_checkpoint(target: str, latest: int, number: int) -> SinkError:
    return SinkError(
        f"{target} contains rows of a checkpoint created at {created_at(latest)}; "
        f"the rows of this checkpoint, created at {created_at(number)}, would be "
        "ignored because they look older",
        hint="If a machine's clock is wrong, correct it and start the query with a new "
        "checkpoint: tidemill pipeline reset. If another query writes to the table, "
        "give each query its own table.",
    )
