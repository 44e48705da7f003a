"""Sinks that write to Kafka topics exactly once: ``TopicSink`` and ``ChangelogSink``.

Must not know: other sinks, how pipelines run, how records reach the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tidemill.spark.base.ddl import escaped
from tidemill.spark.base.explain import spark_message
from tidemill.spark.base.options import TOPIC_NAME, TOPIC_NAME_HINT
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import (
    CheckpointState,
    Columns,
    Mistake,
    QueryContext,
    Run,
    Sink,
    SinkTopic,
    Writer,
    as_columns,
    mistakes_of,
)
from tidemill.spark.sinks.topic.options import check_pipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
_DISCARD = "noop"
"""A format of Spark's that takes all output modes, and discards rows. There are none."""
_NO_ROWS = "written bigint"


@dataclass(frozen=True)
class _RecordSink(Sink):
    """Base of the sinks that write each row as a record."""

    topic: str
    key: Columns

    is_changelog: ClassVar[bool] = False

    @property
    def target(self) -> str:
        return f"topic {self.topic}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.key)

    def topics(self) -> Sequence[SinkTopic]:
        return (SinkTopic(self.topic, is_compacted=self.is_changelog),)

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        if not TOPIC_NAME.fullmatch(self.topic):
            yield Mistake(f"invalid topic name {self.topic!r}", TOPIC_NAME_HINT)
        yield from super().check(context)

    def check_kafka(self, settings: Mapping[str, object]) -> Iterable[Mistake]:
        return mistakes_of(lambda: check_pipeline(settings))

    def check_result(self, df: DataFrame, checkpoint: CheckpointState) -> None:
        from pyspark.errors import AnalysisException

        super().check_result(df, checkpoint)
        try:
            self.records(df)
        except AnalysisException as error:
            raise PipelineError(
                f"{type(self).__name__} can't write the result: {spark_message(str(error))}",
                hint="Rename or cast the columns.",
            ) from error

    def records(self, df: DataFrame) -> DataFrame:
        """Return the rows of a result as records, with the columns of Spark's Kafka sink."""
        from tidemill.spark.sinks.topic.records import records

        return records(df, self.key_columns, tombstones=self.is_changelog)

    def open(self, run: Run) -> Writer:
        return _RecordWriter(self, run)


@dataclass(frozen=True)
class TopicSink(_RecordSink):
    """Writes each row as a record: a JSON object of all its columns. Exactly once.

    A result without ``key=`` is written unchanged if it has a column ``value`` (STRING or BINARY)
    and no other columns than ``key`` (the same) and ``headers``
    (ARRAY<STRUCT<key: STRING, value: BINARY>>).

    Several queries may write to one topic: each writes its own records exactly once.

    In update and complete mode a later record of a key replaces an earlier one only if readers
    treat the topic in this way. ``ChangelogSink`` is made for that.

    Attributes:
        topic: Name of the topic. It is created with the broker's defaults if it is missing.
        key: Column or columns of the record's key. One column is written as its text, several as a
            JSON object. Without ``key`` the records have no key.
    """

    key: Columns = ()

    adds_only: ClassVar[bool] = True


@dataclass(frozen=True)
class ChangelogSink(_RecordSink):
    """Writes the current row of each key to a compacted topic. Exactly once.

    A row whose column ``_deleted`` is true becomes a tombstone (a null value). The column itself is
    not written.

    Attributes:
        topic: Name of the topic. It is created as a compacted topic if it is missing.
        key: Column or columns of the record's key, as for ``TopicSink``. A row with a null in one
            of them fails the query.
    """

    needs_key: ClassVar[bool] = True
    is_changelog: ClassVar[bool] = True


class _RecordWriter(Writer):
    """Writes the rows of a query as records, in one of three ways.

    On this machine, the query's own tasks write, as the last step of its plan: Spark plans a batch
    once and runs it as one job, in all output modes, and no process of Spark's asks Python to
    prepare and to commit the batch. Elsewhere they can't read the checkpoint, so the
    driver prepares each batch: through the data source ``tidemill`` in append mode, and batch by
    batch in the other modes, which Spark allows no Python data source.
    """

    def __init__(self, sink: _RecordSink, run: Run) -> None:
        self._sink = sink
        self._run = run

    def stream(self, df: DataFrame) -> DataStreamWriter:
        from tidemill.spark.sinks.topic.tasks import ShareWriter

        run, topic = self._run, self._sink.topic
        if tasks_read(df.sparkSession.sparkContext.master or ""):
            return writing(
                self._sink.records(df), ShareWriter(topic, run.kafka, run.sink_id, run.checkpoint)
            )
        if run.mode != "append":
            return super().stream(df)
        writer = self._sink.records(df).writeStream.format("tidemill")
        for name, value in run.kafka.items():
            writer = writer.option(f"kafka.{name}", value)
        return writer.option("topic", topic).option("sinkId", run.sink_id)

    def write(self, df: DataFrame, batch_id: int) -> None:
        from tidemill.spark.sinks.topic.batches import write_batch

        try:
            write_batch(
                self._sink.records(df),
                batch_id,
                topic=self._sink.topic,
                sink_id=self._run.sink_id,
                kafka=self._run.kafka,
                checkpoint=self._run.checkpoint,
            )
        except Exception as error:
            cause = self._missing_key(error)
            if cause is None:
                raise
            raise cause from error

    def cause_of(self, error: BaseException) -> BaseException:
        return self._missing_key(error) or error

    def _missing_key(self, error: BaseException) -> PipelineError | None:
        from tidemill.spark.sinks.topic.records import missing_key_column

        column = missing_key_column(str(error))
        if column is None:
            return None
        # A PipelineError is final: a restart would read the same row again.
        return PipelineError(
            f"a row for topic {self._sink.topic} has no {column}, which is part of the key",
            hint=f'Filter out such rows: filter("{escaped(column)} IS NOT NULL").',
        )


def tasks_read(master: str) -> bool:
    """Whether the tasks of a session can read the driver's files, and run in one attempt."""
    return master.startswith("local") and not master.startswith("local-cluster")


def writing(
    records: DataFrame, write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> DataStreamWriter:
    """Return Spark's writer for a query whose tasks write their rows themselves."""
    return records.mapInArrow(write, _NO_ROWS).writeStream.format(_DISCARD)
