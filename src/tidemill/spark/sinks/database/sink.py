"""The common base of the sinks that upsert into a database's table.

A batch that is run again changes nothing, because each row carries the version of its batch. Must
not know: any one database, Kafka, how pipelines run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import (
    CheckpointState,
    Columns,
    Mistake,
    QueryContext,
    Run,
    Sink,
    Writer,
    as_columns,
)
from tidemill.spark.sinks.batch_identity import StartedBatch
from tidemill.spark.sinks.database.rows import Layout, collect, layout_of, prepare
from tidemill.spark.sinks.database.version import version

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.spark.sinks.database.upsert import UpsertTable


BESIDE = "__rebuild"
"""Suffix of the name of the table that a rebuild writes."""


@dataclass(frozen=True)
class TableSink(Sink):
    """Base of the sinks that upsert rows into a table by key.

    A row whose column ``_deleted`` is true is deleted.

    Attributes:
        table: Name of the table. It is created if it is missing.
        key: Columns of its primary key.
        order_by: If a key occurs more than once in a batch, the row with the greatest values in
            these columns wins. Without ``order_by`` such a batch fails the query.
    """

    table: str
    key: Columns
    order_by: Columns = field(default=(), kw_only=True)

    needs_key: ClassVar[bool] = True

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.key)

    def check_result(self, df: Any, checkpoint: CheckpointState) -> None:
        super().check_result(df, checkpoint)
        layout_of(df.schema, self.key_columns, as_columns(self.order_by))

    def upsert_table(self) -> UpsertTable[Any]:
        """Return the table as an object that writes batches.

        Raises:
            MissingPackageError: The package of the database is not installed.
        """
        raise NotImplementedError

    def open(self, run: Run) -> Writer:
        return TableWriter(self.upsert_table(), run)

    def beside(self) -> TableSink:
        return replace(self, table=f"{self.table}{BESIDE}")

    def switch(self) -> None:
        with closing(self.upsert_table()) as table:
            table.switch(f"{self.table}{BESIDE}")

    def discard(self) -> None:
        with closing(self.upsert_table()) as table:
            table.drop(f"{self.table}{BESIDE}")


@dataclass(frozen=True)
class FileTableSink(TableSink):
    """Base of the sinks whose database is a file.

    Attributes:
        path: The file of the database. It is created if it is missing.
    """

    path: str | Path

    @property
    def target(self) -> str:
        return f"table {self.table} in {self.path}"

    @property
    def place(self) -> Hashable:
        # Both databases ignore case in names and call their default schema "main".
        return (Path(self.path).resolve(), self.table.lower().removeprefix("main."))

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        path = Path(self.path)
        if str(path).startswith(":memory:"):
            yield Mistake(
                f"table {self.table} can't be in memory: the database is opened for each batch, so "
                "each batch would find it empty",
                'Use a file, for example path="out.db".',
            )
        elif not path.parent.is_dir():
            yield Mistake(
                f"folder {path.parent} for {self.target} does not exist",
                "Create it first. A relative path starts in the folder where the pipeline is run.",
            )
        elif path.is_dir():
            yield Mistake(
                f"table {self.table} needs a file, but {path} is a folder",
                'Use a file in it, for example path="out.db".',
            )

    def check_result(self, df: Any, checkpoint: CheckpointState) -> None:
        super().check_result(df, checkpoint)
        # The table is created with batch 0, which is complete if a later one was planned.
        path, last = Path(self.path), checkpoint.last_batch
        if not checkpoint.is_fresh and last and not path.exists():
            raise PipelineError(
                f"{self.target}: file {path.absolute()} does not exist, but the checkpoint has "
                "written batches: what they wrote would be missing",
                hint="A relative path starts in the folder where the pipeline is run: run it where "
                "it ran before, or restore the file. Or start again with a new checkpoint: "
                f"{checkpoint.reset}",
            )


class Target(Protocol):
    """The place that a ``TableWriter`` writes to: a table of a database, or another store."""

    key: tuple[str, ...]
    order_by: tuple[str, ...]

    @property
    def target(self) -> str: ...

    def apply(
        self,
        rows: pa.Table,
        layout: Layout,
        number: int,
        *,
        is_first: bool,
        is_new: bool,
        on_start: Callable[[], None],
    ) -> None: ...

    def close(self) -> None: ...


class TableWriter(Writer):
    """Writes the batches of one run into a table."""

    def __init__(self, table: Target, run: Run) -> None:
        self._table = table
        self._created_ms = run.created_ms
        self._started = None if run.note is None else StartedBatch(run.note, run.checkpoint)
        self._has_written = False
        self._has_started_new = False

    def write(self, df: Any, batch_id: int) -> None:
        """Write a batch: upserts, and deletions where ``_deleted`` is true. All of it or nothing.

        Raises:
            SchemaError: Columns are missing, the table can't store a type, or the table in the
                database has other columns.
            RowError: A row has no key, or two rows have the same key.
            SinkError: The database rejected the batch. Or the checkpoint is new, and the table
                contains rows of a checkpoint that is not older.
            CheckpointRestoredError: The checkpoint was restored from a backup, and the table
                already contains the batch.
        """
        table = self._table
        layout = layout_of(df.schema, table.key, table.order_by)
        number = version(self._created_ms, batch_id)
        rows = prepare(collect(df, layout, table.target), layout, table.target)
        # Batch 0 after this writer has written is a late repetition, which is ignored.
        is_first = batch_id == 0 and not self._has_written
        # After one batch was found to be new, all later ones of this run are its successors.
        is_new = (
            self._started is not None
            and not self._has_started_new
            and self._started.is_new(batch_id)
        )

        def on_start() -> None:
            if self._started is not None:
                self._started.record(batch_id)

        table.apply(rows, layout, number, is_first=is_first, is_new=is_new, on_start=on_start)
        self._has_written = True
        self._has_started_new |= is_new

    def close(self) -> None:
        """Close the table's connection, if it keeps one."""
        self._table.close()
