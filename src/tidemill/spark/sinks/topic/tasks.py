"""The part of the topic sinks that runs in Spark's tasks: which share of a batch a task writes.

Must not know: options' names, pipelines, Kafka clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.batch_identity import BatchIdentity, batch_identity
from tidemill.spark.sinks.topic import complete_input

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from tidemill.spark.sinks.topic.delivery.exactly_once import Share

# Names of the local properties that Spark sets for each task of a streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """The task that runs in this worker, and the batch that it belongs to.

    Attributes:
        task: Number of the task within the batch, from 0.
        query: Id of the query, which its checkpoint keeps; empty if there is none.
        batch_id: Number of the batch; None outside of a query.
        run: Identifies the run of the query and the attempt of the task.
    """

    task: int
    query: str
    batch_id: int | None
    run: str

    def share(self, sink_id: str, batch_id: int, identity: BatchIdentity | None) -> Share:
        """Return the share of the batch that this task writes.

        Args:
            identity: What the batch reads, as far as it is known.
        """
        from tidemill.spark.sinks.topic.delivery.exactly_once import Share

        is_known = identity is not None and identity.batch_id == batch_id
        return Share(
            sink_id,
            self.task,
            batch_id,
            owner=self.query,
            run=self.run,
            fingerprint=identity.fingerprint if identity is not None and is_known else "",
        )


def task_batch() -> TaskBatch | None:
    """Return the task of this worker; None outside of a task."""
    from pyspark import TaskContext

    task: TaskContext | None = TaskContext.get()
    if task is None:
        return None
    batch = task.getLocalProperty(_BATCH_ID)
    return TaskBatch(
        task=task.partitionId(),
        query=task.getLocalProperty(_QUERY_ID) or "",
        batch_id=None if batch is None else int(batch),
        run=f"{task.getLocalProperty(_RUN_ID) or ''}#{task.attemptNumber()}",
    )


def complete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield all batches, then raise an error if rows of the task are missing."""
    yield from batches
    complete_input.ensure_complete()


@dataclass(frozen=True)
class ShareWriter:
    """Writes the rows of a task exactly once. Spark pickles it to the workers.

    Attributes:
        topic: Topic for all rows.
        kafka: Settings of librdkafka, with ``bootstrap.servers``.
        sink_id: Name of the output.
        checkpoint: Folder of the query's checkpoint. The workers must be able to read it.
    """

    topic: str
    kafka: Mapping[str, str]
    sink_id: str
    checkpoint: str

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A worker unpickles the writer before it reads the rows of the task.
        complete_input.watch()
        self.__dict__.update(state)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all rows, and return none."""
        from tidemill.spark.sinks.topic.delivery.exactly_once import write_share

        task = task_batch()
        if task is None or task.batch_id is None:
            raise DeliveryError("exactly-once delivery needs a task of a streaming query")
        # Spark wrote what the batch reads to the checkpoint before it started this task.
        share = task.share(
            self.sink_id, task.batch_id, batch_identity(self.checkpoint, task.batch_id)
        )
        write_share(complete(batches), self.topic, self.kafka, share, marker_topic=self.topic)
        return iter(())
