"""The contract of a sink: one class that declares, checks and writes the result of a query.

A sink is a frozen dataclass; its fields are the options that the user sets. The pipeline's checks
call ``check`` before Spark starts and ``check_result`` after Spark has analysed the query. Then
``open`` returns the writer of one run. A sink must be importable without PySpark and without the
package of its database, so both are imported inside ``check_result`` and ``open`` only.

This module must not know: any one sink, Kafka clients, how pipelines run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tidemill.errors import TidemillError
from tidemill.spark.base.explain import RESET
from tidemill.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Columns = str | Sequence[str]
"""One column name or several."""

DELETED = "_deleted"
"""Column of a result that marks a row as deleted, for sinks that can delete."""

MODES = ("append", "update", "complete")
"""Output modes of a streaming query."""


class Mistake(NamedTuple):
    """Something that is wrong with a sink as it was declared.

    Attributes:
        message: What is wrong.
        hint: What to do about it, or an empty string.
    """

    message: str
    hint: str = ""


class SinkTopic(NamedTuple):
    """A topic that a sink writes to. The runner creates it if it is missing.

    Attributes:
        name: Name of the topic.
        is_compacted: Whether the topic keeps the last record of each key (a changelog).
    """

    name: str
    is_compacted: bool = False


@dataclass(frozen=True, slots=True)
class QueryContext:
    """A query as it was declared, for ``Sink.check``.

    Attributes:
        pipeline: Name of the pipeline.
        query: Name of the query.
        mode: Output mode of the query.
    """

    pipeline: str
    query: str
    mode: str


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The state of a query's checkpoint, for ``Sink.check_result``.

    Attributes:
        is_fresh: Whether no batch was ever started, so that Spark counts batches from 0.
        last_batch: Number of the last batch that Spark planned, or None if it is not known.
        reset: The command that gives the query a new checkpoint.
    """

    is_fresh: bool = True
    last_batch: int | None = None
    reset: str = RESET


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a query, for ``Sink.open``.

    Attributes:
        pipeline: Name of the pipeline.
        query: Name of the query.
        mode: Output mode of the query.
        trigger: Keyword arguments for Spark's ``DataStreamWriter.trigger``.
        checkpoint: Address of Spark's checkpoint folder.
        checkpoint_id: Identifier of the checkpoint. A reset query gets another one.
        created_ms: When the checkpoint was created, in milliseconds since 1970. A later checkpoint
            of the same query has a greater value.
        kafka: Settings of librdkafka, with ``bootstrap.servers``.
        note: File beside the checkpoint in which a sink may keep what it must remember between
            runs. It is backed up, restored and removed together with the checkpoint.
    """

    pipeline: str
    query: str
    mode: str
    checkpoint: str
    checkpoint_id: str
    created_ms: int
    kafka: Mapping[str, str] = field(default_factory=dict)
    trigger: Mapping[str, Any] = field(default_factory=dict)
    note: Path | None = None

    @property
    def name(self) -> str:
        """The name of the query in Spark: ``pipeline/query``."""
        return f"{self.pipeline}/{self.query}"

    @property
    def sink_id(self) -> str:
        """The name of this output at the brokers. It changes with the checkpoint."""
        return f"{self.pipeline}.{self.query}.{self.checkpoint_id}"


class Writer:
    """Writes the batches of one run of a query.

    Most writers override ``write`` only. A writer that uses a format of Spark's overrides
    ``stream`` instead.
    """

    def stream(self, df: DataFrame) -> DataStreamWriter:
        """Return Spark's writer for a result. The caller sets mode, checkpoint and trigger.

        Args:
            df: The streaming result of the query.
        """
        return df.writeStream.foreachBatch(self.write)

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch. Spark may call this again with the same batch after a crash.

        Args:
            df: The rows of the batch.
            batch_id: Number of the batch, from 0 in a new checkpoint.

        Raises:
            TidemillError: The batch can't be written.
        """
        raise NotImplementedError

    def cause_of(self, error: BaseException) -> BaseException:
        """Return the error to report for the error that ended the query; by default the same.

        Args:
            error: The error of the query, as Spark reports it.
        """
        return error

    def close(self) -> None:
        """Release what the writer holds between batches. Called when the query has ended."""


@dataclass(frozen=True)
class Sink:
    """A place that the result of a query is written to. Subclass it to add a connector.

    A subclass is a frozen dataclass whose fields are its options. It must define ``target`` and
    ``open``.

    Attributes:
        modes: Output modes in which the sink gives correct results.
        needs_key: Whether the user must name key columns.
        adds_only: Whether the sink only adds to its place, and replaces nothing there. Then other
            queries of the pipeline may add to it, too.
    """

    modes: ClassVar[tuple[str, ...]] = MODES
    needs_key: ClassVar[bool] = False
    adds_only: ClassVar[bool] = False

    @property
    def target(self) -> str:
        """The name of the place, for messages. It must not contain a password."""
        raise NotImplementedError

    @property
    def place(self) -> Hashable:
        """A value that is equal for two sinks that write to the same place.

        No two queries of a pipeline may share it, unless all their sinks have ``adds_only``. It is
        never shown, so it may contain secrets.
        """
        return self.target

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns of the result that the sink needs, as far as the declaration names them."""
        return ()

    def topics(self) -> Sequence[SinkTopic]:
        """Return the topics that the sink writes to."""
        return ()

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        """Yield what is wrong with the declaration, before anything starts.

        Args:
            context: The query that writes to the sink.
        """
        if self.needs_key and not self.key_columns:
            yield Mistake(
                f"{type(self).__name__} has no key",
                'Name the columns that identify a row, for example key="id".',
            )

    def check_kafka(self, settings: Mapping[str, object]) -> Iterable[Mistake]:
        """Yield which of the pipeline's Kafka settings prevent the sink from writing.

        Args:
            settings: Settings of librdkafka, as the user wrote them.
        """
        return ()

    def check_result(self, df: DataFrame, checkpoint: CheckpointState) -> None:
        """Check the analysed result of the query, before any query of the pipeline starts.

        Args:
            df: The streaming result of the query.
            checkpoint: The state of the query's checkpoint.

        Raises:
            PipelineError: The result lacks a column that the sink needs, or has several columns or
                fields with the same name. Upper and lower case are the same.
            TidemillError: The sink can't write this result, or can't continue from this checkpoint.
        """
        names = {name.lower() for name in df.columns}
        missing = [column for column in self.key_columns if column.lower() not in names]
        if missing:
            raise PipelineError(
                f"the result has no column {', '.join(missing)}, which {type(self).__name__} needs",
                hint=f"Its columns are {', '.join(df.columns)}.",
            )
        for column, twice in _same_names(df.schema.jsonValue()):
            where = f"column {column} of the result" if column else "the result"
            what = "fields" if column else "columns"
            raise PipelineError(
                f"{where} has {what} with the same name: {', '.join(twice)}",
                hint="Names that differ only in case are the same for Spark and for most sinks. "
                "Rename one of them: SELECT ... AS ...",
            )

    def open(self, run: Run) -> Writer:
        """Return the writer for one run of the query.

        Args:
            run: The run that is about to start.

        Raises:
            TidemillError: The sink can't be opened.
        """
        raise NotImplementedError

    # --- how ``tidemill pipeline rebuild`` writes the sink again from the beginning ---------------

    def beside(self) -> Sink | None:
        """Return a sink that writes to a new place beside this one's, for a rebuild.

        It must be equal for equal sinks, because a rebuild continues after a crash.

        Returns:
            None if the sink can't be rebuilt beside itself.
        """
        return None

    def switch(self) -> None:
        """Put what ``beside`` has written into this sink's place, and remove what was there.

        Readers see either the old content or the new one. A rebuild that crashed calls this again,
        also after it was completed: then it must change nothing.

        Raises:
            TidemillError: The switch failed; nothing has changed for readers, or all has.
        """
        raise NotImplementedError

    def discard(self) -> None:
        """Remove what ``beside`` has written, if anything.

        Raises:
            TidemillError: It can't be removed.
        """
        raise NotImplementedError


def is_sink(candidate: object) -> bool:
    """Whether an object, or a class, implements the contract of a sink."""
    if isinstance(candidate, type):
        return issubclass(candidate, Sink)
    return isinstance(candidate, Sink)


def as_columns(columns: Columns) -> tuple[str, ...]:
    """Return one column name or several as a tuple."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def mistakes_of(check: Callable[[], object]) -> Iterator[Mistake]:
    """Yield the error that a check raises, as a mistake.

    Args:
        check: A function that raises ``TidemillError`` if something is wrong.
    """
    try:
        check()
    except TidemillError as error:
        yield Mistake(str(error), error.hint)


def _same_names(kind: Any, column: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the names that occur more than once in a struct of ``kind``, and in which column.

    Args:
        kind: The type as in ``StructType.jsonValue``.
        column: The column with this type; empty for the columns themselves.
    """
    from tidemill.spark.base.ddl import same_names

    if not isinstance(kind, Mapping):
        return
    fields = kind.get("fields", ())
    if twice := same_names([each["name"] for each in fields]):
        yield column, twice
    for each in fields:
        yield from _same_names(each["type"], column or each["name"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _same_names(kind.get(part), column)
