"""The contract of a source of tables: one class that checks itself, names its topics and is read.

A new source is a subclass in a file of its own. A package that provides one names the class in the
entry point group ``tidemill.table_sources``. Must not know: pipelines, joins, any single source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.duration import Duration
from tidemill.spark.base.options import ISO
from tidemill.spark.errors import JoinError
from tidemill.spark.tables.changes import DEFAULT_LIMIT, TableSpec
from tidemill.spark.tables.records import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DELETED, PARTITION, OFFSET, TIMESTAMP = "_deleted", "_partition", "_offset", "_timestamp"
"""Columns of ``TableSource.changes`` besides the table's own."""
VERSION, COMMIT_TIME = "_version", "_commit_time"
"""Columns of ``TableSource.changes``: a number that grows from change to change of a key, with
which sinks ignore older changes; and, of a captured table only, the time of the commit."""
VALID_FROM, VALID_TO = "valid_from", "valid_to"
"""Columns of ``TableSource.versions`` besides the table's own."""


@dataclass(frozen=True)
class TableContext:
    """The declaration and the surroundings with which a table is read.

    Attributes:
        spark: the session.
        schema: the table's columns and its key.
        kafka: settings of librdkafka, with ``bootstrap.servers``.
        memory_limit: most bytes that the table may take in a Python worker.
    """

    spark: SparkSession
    schema: TableSchema
    kafka: Mapping[str, str]
    memory_limit: int = DEFAULT_LIMIT


class TableSource(ABC):
    """A place from which the rows of a pipeline's table come.

    Only ``description`` and ``rows`` must be written. A source without the other methods works
    with ``.df``, SQL and ``enrich``: Spark then joins with all rows in each micro-batch.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """The source as messages name it, for example ``topic airlines``."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the source reads. A run creates those that are missing, compacted."""
        return ()

    @property
    def timestamp_format(self) -> str:
        """The meaning of a number in a TIMESTAMP column of a row's JSON object; with ``iso`` it is
        refused."""
        return ISO

    def check(self) -> None:  # noqa: B027 - most sources have nothing to check
        """Check what is visible before Spark starts.

        Raises:
            TidemillError: the source can't be read as it is declared.
        """

    @abstractmethod
    def rows(self, context: TableContext) -> DataFrame:
        """Return the table as it is now: a batch DataFrame with the columns of the schema.

        Spark computes the DataFrame in each micro-batch of a stream that is joined with it, so it
        must show the rows of that moment.
        """

    def versions(
        self, context: TableContext, *, keep: Duration, valid_from: str | None = None
    ) -> DataFrame:
        """Return the versions of all rows: the table's columns, ``valid_from`` and ``valid_to``.

        Args:
            context: how to read the table.
            keep: how long a version is kept after another one replaced it.
            valid_from: the table's column with the time from which a version is valid; None for
                the time at which the source received it.

        Raises:
            JoinError: the source keeps no versions.
        """
        raise JoinError(f"{self.description} does not keep versions of its rows")

    def changes(
        self, context: TableContext, *, max_offsets_per_trigger: int | None = None
    ) -> DataFrame:
        """Return the changes of the table as a stream, from the first one.

        Its columns are the table's own, then ``_deleted``, ``_partition``, ``_offset`` and
        ``_timestamp``, and ``_version`` if the source has one. A deletion has the columns of the
        key, and nulls.

        Args:
            context: how to read the table.
            max_offsets_per_trigger: most changes in a micro-batch, or None.

        Raises:
            JoinError: the source does not report changes.
        """
        raise JoinError(f"{self.description} can't be read as a stream of changes")

    def value_now(self, context: TableContext, key: Column) -> Column | None:
        """Return the JSON object of the row that a key has now, as a column; null without a row.

        Args:
            context: how to read the table.
            key: the key as ``TableSchema.key_text`` writes it.

        Returns:
            None if rows can't be looked up: then Spark joins with ``rows``.
        """
        return None

    def value_at(
        self,
        context: TableContext,
        key: Column,
        at: Column,
        *,
        keep: Duration,
        valid_from: str | None = None,
    ) -> Column | None:
        """Return the JSON object of the row that a key had at a time, as a column.

        Args:
            context: how to read the table.
            key: the key as ``TableSchema.key_text`` writes it.
            at: the time in microseconds since 1970.
            keep: as in ``versions``.
            valid_from: as in ``versions``.

        Returns:
            None if rows can't be looked up: then Spark joins with ``versions``.
        """
        return None

    def worker_copy(
        self, context: TableContext, foreign_key: tuple[tuple[str, str], ...] = ()
    ) -> TableSpec | None:
        """Describe the copy of the table that Python workers keep for ``join_tables``.

        Args:
            context: how to read the table.
            foreign_key: columns by which rows are found too, each with the column of the other
                table's key.

        Returns:
            None if Python workers can't keep the table: it then can't be joined on a foreign key.
        """
        return None
