"""Puts the writing to a topic into the plan of a query, as its last step.

Spark then plans a batch once and runs it as one job, in all output modes, and no process of Spark's
asks Python to prepare and to commit the batch. The tasks read the identity of the batch from the
checkpoint, so the checkpoint must be on the machine that runs them. Must not know: Kafka clients,
pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_DISCARD = "noop"
"""A format of Spark's that takes all output modes, and discards rows. There are none."""
_NO_ROWS = "written bigint"


def tasks_read(master: str) -> bool:
    """Whether the tasks of a session can read the driver's files, and run in one attempt.

    Args:
        master: Spark's master URL.
    """
    return master.startswith("local") and not master.startswith("local-cluster")


def writing(
    records: DataFrame, write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> DataStreamWriter:
    """Return Spark's writer for a query whose tasks write their rows themselves.

    Args:
        records: Rows with the columns of Spark's Kafka sink.
        write: Writes the rows of a task, and yields none: a ``ShareWriter``.
    """
    return records.mapInArrow(write, _NO_ROWS).writeStream.format(_DISCARD)
