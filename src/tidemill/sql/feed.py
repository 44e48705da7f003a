"""Read what is new in topics into a DuckDB, batch by batch, for queries that are kept current.

The batch is the table with the topic's name. ``$latest`` tables are kept in the database, and are
read to their end before each batch. Must not know: statements, files, commands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import duckdb
import pyarrow as pa

from tidemill.confluent.asking import Extent
from tidemill.errors import DataLossError
from tidemill.reading.ranges import OffsetRange, limit_offsets
from tidemill.sql.columns import Columns, Misfits, Shape
from tidemill.sql.database import FOR_LATEST, ask, quoted, views
from tidemill.sql.errors import OtherTopicError, UnknownTableError
from tidemill.sql.incremental import Plan
from tidemill.sql.statement import LATEST
from tidemill.sql.topics import Topics

BATCH = 100_000
"""About how many offsets are read in one step."""
BATCH_BYTES = 64 << 20
"""About how many bytes of records are read in one step: they are in memory."""
_SOURCE = "__source"

ShapeOf = Callable[[str, Mapping[int, Extent]], Shape]


class Tail:
    """Reads what is new in a topic: each time from where the last time has ended.

    Args:
        columns: those that are made of its records.
        positions: by partition, the offset to continue with.
        identity: the id that the topic must keep.
        cancelled: set when reading is to end.

    Attributes:
        positions: by partition, the offset to continue with.
    """

    def __init__(
        self,
        topics: Topics,
        topic: str,
        columns: Columns,
        positions: dict[int, int],
        identity: str | None,
        cancelled: threading.Event,
    ) -> None:
        self.topic, self.columns, self.positions = topic, columns, positions
        self._topics, self._cancelled = topics, cancelled
        self._id = identity
        self._cut = -1
        """The partition whose records were cut off at the limit of bytes."""

    def read(self, limit: int, ends: Mapping[int, int] | None = None) -> pa.Table | None:
        """Return new records, and move the positions; None at the end.

        Args:
            limit: about how many offsets are read at most.
            ends: by partition, where to stop; None for the present ends.

        Raises:
            DataLossError: records were removed before they were read.
            OtherTopicError: the topic was created again.
            UnknownTableError: it was deleted.
            UnreachableError: no broker answers.
        """
        found = self.ends() if ends is None else ends
        places = {(self.topic, number): end for number, end in found.items()}
        starts = {place: min(self.positions.get(place[1], 0), end) for place, end in places.items()}
        until = limit_offsets(starts, places, limit)
        ranges = [OffsetRange(*place, starts[place], end) for place, end in until.items()]
        wanted = [each for each in ranges if each.size > 0]
        if not wanted:
            return None
        wanted.sort(key=lambda each: (each.partition <= self._cut, each.partition))
        table, read = self._topics.part(wanted, self.columns, self._cancelled, BATCH_BYTES)
        self._check(self._topics.asking.identity(self.topic))
        self._cut = -1 if len(read) == len(wanted) else [*read][-1]
        self.positions |= read
        return table

    def ends(self) -> dict[int, int]:
        """Return the offsets at which the topic ends now, with the errors of ``read``."""
        identity, ends = self._topics.asking.identified_ends(self.topic)
        self._check(identity)
        if any(position > ends.get(number, 0) for number, position in self.positions.items()):
            self._check_length()
        return ends

    def _check_length(self) -> None:
        """Check that no log ends before what was read. One without records can begin later."""
        extents = self._topics.asking.extents(self.topic)
        for number, position in self.positions.items():
            end = extents[number].end if number in extents else 0
            if position > end:
                raise DataLossError(
                    f"{self.topic}-{number} ends at offset {end}, and was read up to {position}: "
                    "its log has become shorter"
                )

    def _check(self, identity: str | None) -> None:
        if identity is None:
            raise UnknownTableError(f"topic {self.topic} was deleted")
        if identity != self._id:
            raise OtherTopicError(
                f"topic {self.topic} was deleted and created again", hint="Run the query again."
            )


class Feed:
    """The topics of a plan.

    Args:
        shape_of: returns the columns of a topic, given its offsets.
        misfits: counts the values that don't fit the columns.
        cancelled: set when reading is to end.
        identities: by topic, the id that it must have; those that are left out are looked up.

    Attributes:
        source: the topic whose records are the rows.
        extents: the offsets that each topic had at the start.

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
        identities: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._database = database

        def tail(topic: str) -> Tail:
            identity = identities.get(topic) or topics.asking.identity(topic)
            record = FOR_LATEST if topic in plan.tables else {"_partition"}
            wanted = None if plan.used.all_columns else frozenset(plan.used.names) | record
            self.extents[topic] = extents = topics.asking.extents(topic)
            columns = Columns(shape_of(topic, extents), wanted, misfits)
            return Tail(topics, topic, columns, firsts(extents), identity, cancelled)

        self.extents: dict[str, dict[int, Extent]] = {}
        self.source = tail(plan.source)
        self._tables = [Latest(database, tail(topic)) for topic in plan.tables]
        self._show(pa.Table.from_batches([], self.source.columns.schema))
        for view in [*views(plan.source, _SOURCE, self.source.columns)][:1]:
            ask(database, view)

    def read(self, limit: int | None = None) -> int:
        """Make the next records the batch, and return how many offsets were read; 0 at the end.

        Tables have at least what their topics have when it begins.

        Args:
            limit: about how many offsets are read at most; None for ``BATCH``.

        Raises:
            TidemillError: as ``Tail.read``.
        """
        for table in self._tables:
            ends = table.tail.ends()  # more records come meanwhile, perhaps without a pause
            while (new := table.tail.read(BATCH, ends)) is not None:
                table.add(new)
        before = dict(self.source.positions)
        batch = self.source.read(limit or BATCH)
        if batch is None:
            return 0
        self._show(batch)
        return advanced(before, self.source.positions)

    def _show(self, batch: pa.Table) -> None:
        self._database.register(_SOURCE, batch)


def firsts(extents: Mapping[int, Extent]) -> dict[int, int]:
    """Return the first offset of each partition: retention may have removed what was before."""
    return {number: each.first for number, each in extents.items()}


def advanced(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Return how many offsets are between positions."""
    return sum(end - before.get(number, 0) for number, end in after.items())


class Latest:
    """The ``$latest`` table of a topic, in a database.

    Args:
        tail: what is new in the topic.
        kept: whether the database keeps its rows for the next process.
    """

    def __init__(
        self, database: duckdb.DuckDBPyConnection, tail: Tail, *, kept: bool = False
    ) -> None:
        self.tail = tail
        self._database = database
        self._raw, self._kept = quoted(f"__raw {tail.topic}"), kept
        self._register(pa.Table.from_batches([], tail.columns.schema))
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
        topic = self.tail.topic
        name = topic if self._kept else f"__rows {topic}"
        for view in views(name, self._raw, self.tail.columns):
            ask(self._database, view)
        if not self._kept:
            latest = quoted(topic + LATEST)
            rows = quoted(name + LATEST)
            ask(self._database, f"CREATE OR REPLACE TEMP TABLE {latest} AS FROM {rows}")
