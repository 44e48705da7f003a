"""Writes a batch of ``foreachBatch`` to a topic exactly once.

Must not know: Kafka clients, pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.spark.errors import DeliveryError
from tidemill.spark.sinks.topic.options import EXACTLY_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RUN_ID = "spark.jobGroup.id"
"""Spark's local property with the id of the current run of a query."""

_written: dict[tuple[str, str], tuple[str | None, int]] = {}
"""(sink id, topic) -> the last (run, batch) that this process wrote."""


def write_batch(
    df: DataFrame,
    batch_id: int,
    *,
    topic: str,
    sink_id: str,
    kafka: Mapping[str, str],
    checkpoint: str | None = None,
) -> None:
    """Write a batch of ``foreachBatch`` to a topic exactly once. Use it for update mode.

    Args:
        df: Rows with the columns of Spark's Kafka sink.
        batch_id: Number of the batch, as Spark passes it. A batch that was already written is not
            written again.
        topic: Topic for all rows.
        sink_id: Name of this output. Two checkpoints must not share it, nor two calls in one batch.
        kafka: Settings of librdkafka, with ``bootstrap.servers``.
        checkpoint: Folder of the query's checkpoint. It lets the sink detect a checkpoint that was
            restored from a backup and planned this batch again with other records.

    Raises:
        OptionError: A setting or a column is invalid.
        DeliveryError: Another call in this run wrote a batch of this number with the same
            ``sink_id``.
    """
    # A batch that failed is run again in another run of the query, with another run id.
    run = df.sparkSession.sparkContext.getLocalProperty(_RUN_ID)
    this = (run, batch_id)
    if run is not None and _written.get((sink_id, topic)) == this:
        raise DeliveryError(
            f"batch {batch_id} was already written to {topic} with sink_id {sink_id!r} in this "
            "run, so these rows would be lost",
            hint="Use a different sink_id for each call of write_batch.",
        )
    writer = df.write.format("tidemill").mode("append")
    for name, value in kafka.items():
        writer = writer.option(f"kafka.{name}", value)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.option("topic", topic).option("delivery", EXACTLY_ONCE)
    writer.option("sinkId", sink_id).option("batchId", str(batch_id)).save()
    _written[sink_id, topic] = this
