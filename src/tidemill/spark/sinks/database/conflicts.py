"""Check that a batch is not older than what its table contains, because it would be ignored.

Must not know: any one database, Spark, Kafka.
"""

from __future__ import annotations

from tidemill.spark.errors import CheckpointRestoredError, SinkError
from tidemill.spark.sinks.database.rows import ROW_VERSIONS, VERSION, Layout
from tidemill.spark.sinks.database.version import batch_of, created_at, last_of


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
        target: The table, for messages.
        latest: The greatest version in it, or None if it is empty.
        number: Version of the batch.
        layout: Layout of the rows.
        is_first: Whether this is the first batch of its checkpoint.
        is_new: Whether this batch was never started.
        of_checkpoint: The greatest version of the batch's checkpoint in the table, if it is known.

    Raises:
        SinkError: The table contains a newer version, so rows would be ignored silently.
        CheckpointRestoredError: The batch is new, but the table contains its version.
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
