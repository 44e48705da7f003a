"""Where a query's result may go, as plain data: what writes it is chosen by ``runner``.

Must not know: Spark, Kafka clients, databases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from tidemill.errors import MissingPackageError, PipelineError
from tidemill.spark import postgres_dsn

Columns = str | Sequence[str]

MODES = ("append", "update", "complete")
"""Output modes of a streaming query."""

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # as s3a://bucket/folder
_LOCAL = re.compile(r"^file:(//)?(?=/[^/])")  # file:/folder, file:///folder


@dataclass(frozen=True)
class Sink:
    """Base of all sinks.

    Attributes:
        modes: output modes in which its result is right.
    """

    modes: ClassVar[tuple[str, ...]] = MODES

    @property
    def target(self) -> str:
        """What it writes to, for messages."""
        raise NotImplementedError

    @property
    def place(self) -> Hashable:
        """What no two queries may share, however it is spelled. Not to be shown: it has the dsn."""
        return self.target

    def check(self) -> None:
        """Whether it can be what is meant, as far as that is seen before anything starts.

        Raises:
            TidemillError: it can't.
        """

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that identify a row, as far as they are known here."""
        return ()


@dataclass(frozen=True)
class TopicSink(Sink):
    """Each row a record: a JSON object of all its columns; exactly once.

    A result without ``key=`` that has a column ``value`` (STRING or BINARY) and no others than
    ``key`` (the same) and ``headers`` (ARRAY<STRUCT<key: STRING, value: BINARY>>) is written as it
    is.

    In update and complete mode, later records of a key replace earlier ones only if readers see it
    that way: ``ChangelogSink`` is made for that.

    Attributes:
        topic: created with the broker's defaults where it is missing.
        key: column or columns of the record's key; one column is written as its text, several as a
            JSON object; none leaves the key null.
    """

    topic: str
    key: Columns = ()

    @property
    def target(self) -> str:
        return f"topic {self.topic}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.key)


@dataclass(frozen=True)
class ChangelogSink(Sink):
    """A compacted topic that holds the current row of each key; exactly once.

    Rows whose column ``_deleted`` is true become tombstones (a null value); the column itself is
    not written.

    Attributes:
        topic: created compacted where it is missing.
        key: column or columns of the record's key, as of ``TopicSink``; a row in which one of them
            is null fails the query.
    """

    topic: str
    key: Columns

    @property
    def target(self) -> str:
        return f"topic {self.topic}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.key)


@dataclass(frozen=True)
class TableSink(Sink):
    """Base of the databases: upserts by key; a batch that is run again changes nothing.

    Rows whose column ``_deleted`` is true are deleted.

    Attributes:
        table: created where it is missing.
        key: columns of its primary key.
        order_by: columns of which the greatest values win, where a key occurs more than once in a
            batch; without it that is an error.
    """

    table: str
    key: Columns
    order_by: Columns = field(default=(), kw_only=True)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.key)


@dataclass(frozen=True)
class _FileSink(TableSink):
    """Base of the databases that are a file."""

    path: str | Path

    @property
    def target(self) -> str:
        return f"table {self.table} in {self.path}"

    @property
    def place(self) -> Hashable:
        # Both databases do not tell capitals from small letters, and name their schema main.
        return (Path(self.path).resolve(), self.table.lower().removeprefix("main."))

    def check(self) -> None:
        path = Path(self.path)
        if str(path).startswith(":memory:"):
            raise PipelineError(
                f"table {self.table} would be kept in memory, and gone with each batch: the file "
                "is opened anew for each",
                hint='Name a file, for example path="out.db".',
            )
        if not path.parent.is_dir():
            raise PipelineError(
                f"there is no folder {path.parent} for {self.target}",
                hint="Make it first: relative paths begin where the pipeline is run.",
            )
        if path.is_dir():
            raise PipelineError(
                f"table {self.table} in {path} can't be a file: there is a folder",
                hint='Name a file in it, for example path="out.db".',
            )


@dataclass(frozen=True)
class SqliteSink(_FileSink):
    """A table in a SQLite file."""


@dataclass(frozen=True)
class DuckDBSink(_FileSink):
    """A table in a DuckDB file."""

    def check(self) -> None:
        super().check()
        if find_spec("duckdb") is None:
            raise MissingPackageError(
                "the package duckdb is not installed", hint="pip install 'tidemill[duckdb]'"
            )


@dataclass(frozen=True)
class PostgresSink(TableSink):
    """A table in PostgreSQL.

    Attributes:
        dsn: as libpq wants it, e.g. ``"host=db dbname=flights user=etl"`` or a URL. A password is
            better kept in ``~/.pgpass``; the dsn is never shown.
    """

    dsn: str = field(repr=False)

    @property
    def target(self) -> str:
        return f"table {self.table} in PostgreSQL"

    @property
    def place(self) -> Hashable:
        return (postgres_dsn.place_of(self.dsn), self.table)

    def check(self) -> None:
        postgres_dsn.check(self.dsn, self.table)


@dataclass(frozen=True)
class ParquetSink(Sink):
    """Parquet files, exactly once for readers that go through Spark (its ``_spark_metadata``).

    Attributes:
        path: folder.
        partition_by: columns whose values become folders.
    """

    path: str | Path
    partition_by: Columns = ()

    modes: ClassVar[tuple[str, ...]] = ("append",)

    @property
    def target(self) -> str:
        return f"folder {self.path}"

    @property
    def place(self) -> Hashable:
        path = _LOCAL.sub("", str(self.path), count=1)
        return path.rstrip("/") if _ADDRESS.match(path) else Path(path).resolve()

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.partition_by)


@dataclass(frozen=True)
class ForeachBatchSink(Sink):
    """A function of the user's: it must be harmless to call it again with the same batch.

    Attributes:
        function: called with a DataFrame and the batch's number.
        name: what it writes to: no two queries may have the same.
    """

    function: Callable[[Any, int], None]
    name: str = ""

    @property
    def target(self) -> str:
        return f"function {self.name or getattr(self.function, '__qualname__', self.function)}"

    @property
    def place(self) -> Hashable:
        if self.name:
            return self.target
        # A method is made anew each time it is asked for.
        bound = getattr(self.function, "__self__", None)
        return (id(getattr(self.function, "__func__", self.function)), id(bound))


def as_columns(columns: Columns) -> tuple[str, ...]:
    """One name or several as a tuple."""
    return (columns,) if isinstance(columns, str) else tuple(columns)
