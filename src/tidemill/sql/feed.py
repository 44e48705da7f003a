"""Read what is new in topics into a DuckDB, batch by batch, for queries that are kept current.

The batch is the table with the topic's name. ``$latest`` tables are kept in the database, and are
read to their end before each batch. Must not know: statements, files, commands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import duckdb
import pyarrow as pa

from tidemill.confluent.asking import Extent
from tidemill.reading.ranges import OffsetRange, limit_offsets
from tidemill.sql.columns import Columns, Misfits, Shape
from tidemill.sql.database import FOR_LATEST, ask, quoted, views
from tidemill.sql.incremental import Plan
from tidemill.sql.statement import LATEST
from tidemill.sql.topics import Topics

BATCH = 100_000
_SOURCE = "__source"

ShapeOf = Callable[[str, Mapping[int, Extent]], Shape]


class Feed:
    """The topics of a plan.

    Args:
        shape_of: returns the columns of a topic, given its offsets.
        misfits: counts the values that don't fit the columns.
        cancelled: set when reading is to end.

    Attributes:
        positions: by partition of the source, the offset to continue with.
        shapes: the columns of each topic.

    Raises:
        UnknownTopicOrPartitionError: a topic does not exist.
    """

    def __init__(
        self,
        topics: Topics,
        plan: Plan,
        database: duckdb.DuckDBPyConnection,
        shape_of: ShapeOf,
        misfits: Misfits,
        cancelled: threading.Event,
    ) -> None:
        self._topics = topics
        self._database = database
        self._cancelled = cancelled
        self._source = plan.source

        def columns(topic: str) -> Columns:
            record = FOR_LATEST if topic in plan.tables else {"_partition"}
            wanted = None if plan.used.all_columns else frozenset(plan.used.names) | record
            self.extents[topic] = topics.asking.extents(topic)
            self.shapes[topic] = shape_of(topic, self.extents[topic])
            return Columns(self.shapes[topic], wanted, misfits)

        self.extents: dict[str, dict[int, Extent]] = {}
        self.shapes: dict[str, Shape] = {}
        self.columns = columns(plan.source)
        self.positions = {number: each.first for number, each in self.extents[plan.source].items()}
        self._tables = [Latest(database, topic, columns(topic), {}) for topic in plan.tables]
        self._show(pa.Table.from_batches([], self.columns.schema))
        for view in [*views(plan.source, _SOURCE, self.columns)][:1]:
            ask(database, view)

    def read(self, limit: int = BATCH) -> int:
        """Make the next records the batch, and return how many offsets were read; 0 at the end.

        Raises:
            DataLossError: records were removed before they were read.
            UnreachableError: no broker answers.
        """
        for table in self._tables:
            place = table.topic, table.columns, table.positions, BATCH
            while (new := self._new(*place)) is not None:
                table.add(new)
        before = dict(self.positions)
        batch = self._new(self._source, self.columns, self.positions, limit)
        if batch is None:
            return 0
        self._show(batch)
        return sum(end - before.get(number, 0) for number, end in self.positions.items())

    def ends(self) -> dict[int, int]:
        """Return the offsets at which the source ends now."""
        return self._topics.asking.ends(self._source)

    def _show(self, batch: pa.Table) -> None:
        self._database.register(_SOURCE, batch)

    def _new(
        self, topic: str, columns: Columns, positions: dict[int, int], limit: int
    ) -> pa.Table | None:
        return new_records(self._topics, topic, columns, positions, limit, self._cancelled)


def new_records(
    topics: Topics,
    topic: str,
    columns: Columns,
    positions: dict[int, int],
    limit: int,
    cancelled: threading.Event,
) -> pa.Table | None:
    """Return about so many new records of a topic, and move the positions; None at its end."""
    ends = {(topic, number): end for number, end in topics.asking.ends(topic).items()}
    starts = {place: min(positions.get(place[1], 0), end) for place, end in ends.items()}
    until = limit_offsets(starts, ends, limit)
    ranges = [OffsetRange(*place, starts[place], end) for place, end in until.items()]
    wanted = [each for each in ranges if each.size > 0]
    if not wanted:
        return None
    batches = list(topics.scan(wanted, columns, cancelled))
    for each in wanted:
        positions[each.partition] = each.end
    return pa.Table.from_batches(batches, columns.schema)


class Latest:
    """The ``$latest`` table of a topic, in a database.

    Args:
        positions: by partition, the offset to continue with.
        kept: whether the database keeps its rows for the next process.
    """

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        topic: str,
        columns: Columns,
        positions: dict[int, int],
        *,
        kept: bool = False,
    ) -> None:
        self.topic, self.columns, self.positions = topic, columns, positions
        self._database = database
        self._raw, self._kept = quoted(f"__raw {topic}"), kept
        self._register(pa.Table.from_batches([], columns.schema))
        made = "TABLE" if kept else "TEMP TABLE"
        ask(database, f"CREATE {made} IF NOT EXISTS {self._raw} AS FROM __new LIMIT 0")
        database.unregister("__new")
        self._made()

    def add(self, batch: pa.Table) -> None:
        """Take over new records."""
        if not batch.num_rows:
            return
        self._register(batch)
        database, raw = self._database, self._raw
        newest = "SELECT _key, _partition FROM __new WHERE _key IS NOT NULL"
        ask(database, f"DELETE FROM {raw} WHERE (_key, _partition) IN ({newest})")
        ask(
            database,
            f"INSERT INTO {raw} FROM __new WHERE _key IS NOT NULL "
            "QUALIFY row_number() OVER (PARTITION BY _key, _partition ORDER BY _offset DESC) = 1",
        )
        database.unregister("__new")
        if not self._kept:
            self._made()

    def _register(self, batch: pa.Table) -> None:
        self._database.register("__new", batch)

    def _made(self) -> None:
        """Make the table: for readers of each batch it is stored, or else it is a view."""
        name = self.topic if self._kept else f"__rows {self.topic}"
        for view in views(name, self._raw, self.columns):
            ask(self._database, view)
        if not self._kept:
            latest = quoted(self.topic + LATEST)
            rows = quoted(name + LATEST)
            ask(self._database, f"CREATE OR REPLACE TEMP TABLE {latest} AS FROM {rows}")
