"""Start the queries for dead letters that run in this process instead of in Spark.

On one machine, a thread of the driver reads the topic and writes what is refused. On a cluster, the
driver would read the topics of all streams alone, so Spark runs these queries. Both ways have the
same checkpoint, and the same marker for each part of a batch. Must not know: Kafka clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.spark.errors import PipelineError
from tidemill.spark.letters.query import LetterPlan, LetterQuery
from tidemill.spark.letters.records import HEADERS
from tidemill.spark.pipelines.checkpoint import Checkpoint, Fingerprint
from tidemill.spark.pipelines.declared import Pipeline, Query, Stream
from tidemill.spark.pipelines.fingerprint import FORMAT
from tidemill.spark.pipelines.reading.stream_source import StreamSource, parsing_options, row_plan
from tidemill.spark.sinks.base import Run
from tidemill.spark.sinks.topic.options import parse_sink_options
from tidemill.spark.source.planning.options import parse_source_options
from tidemill.spark.source.planning.parsing import REASON as REASON_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def runs_here(query: Query, master: str, source_format: str) -> bool:
    """Whether a query is for dead letters, and runs in this process."""
    is_for_letters = query.build is None and query.sql is None
    return is_for_letters and source_format == "tidemill" and master.startswith("local")


@dataclass(frozen=True)
class ReadyLetters:
    """A query for dead letters that passed all checks.

    Attributes:
        stream: the stream whose records it checks.
        source: knows how the pipeline's topics are read.
        checkpoint: the folder of its checkpoint.
        fingerprint: the fingerprint that the query has in Spark.
    """

    query: Query
    stream: Stream
    source: StreamSource
    checkpoint: Checkpoint
    fingerprint: Fingerprint

    def start(self, run: Run) -> LetterQuery:
        """Start the query."""
        rows = row_plan(self.stream, refused=True)
        options = {**self.source.options(self.stream), **parsing_options(rows)}
        kafka = {f"kafka.{name}": value for name, value in run.kafka.items()}
        topic = self.stream.dead_letters
        assert topic is not None
        plan = LetterPlan(
            pipeline=run.pipeline,
            stream=self.stream.name,
            options=parse_source_options(options),
            rows=rows,
            topic=topic,
            kafka=parse_sink_options({**kafka, "topic": topic, "sinkId": run.sink_id}).kafka,
            sink_id=run.sink_id,
            until_caught_up="availableNow" in run.trigger,
            reports=self.source.reports(self.stream),
        )
        return LetterQuery(plan, self.checkpoint.spark_folder)


def make_letters_ready(
    query: Query,
    pipeline: Pipeline,
    source: StreamSource,
    checkpoint: Checkpoint,
    spark_version: str,
) -> ReadyLetters:
    """Check the checkpoint of a query for dead letters.

    Raises:
        PipelineError: the query can't continue from the checkpoint.
    """
    stream = pipeline.find(query.inputs[0])
    if not isinstance(stream, Stream):
        raise PipelineError(f"{query.inputs[0]} is not a stream")
    fingerprint = Fingerprint(
        sources=(f"topic {stream.topic}",),
        mode=query.mode,
        state=(),
        made_by=f"{FORMAT} {spark_version}",
    )
    checkpoint.check(fingerprint)
    return ReadyLetters(query, stream, source, checkpoint, fingerprint)


def dead_letters(refused: DataFrame, stream: str, pipeline: str) -> DataFrame:
    """Return dead letters as a query of Spark, with the columns of ``letters_of``.

    Args:
        refused: the records that can't be parsed, with the columns of the Kafka source, ``headers``
            among them, and with the reason.
    """
    from pyspark.sql import functions as f

    values: tuple[Column, ...] = (
        f.col(REASON_COLUMN),
        f.col("topic"),
        f.col("partition").cast("string"),
        f.col("offset").cast("string"),
        f.unix_millis("timestamp").cast("string"),
        f.lit(pipeline),
        f.lit(stream),
    )
    added = f.array(
        *[
            f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value"))
            for name, value in zip(HEADERS, values, strict=True)
        ]
    )
    own = f.col("headers")
    headers = f.when(own.isNull(), added).otherwise(f.concat(own, added))
    return refused.select("key", "value", headers.alias("headers"))
