"""Run statements: DuckDB computes, and a Kafka client reads what it computes on.

Each statement has a DuckDB of its own in memory, without extensions and settings to change, and
without files except in a folder that the caller names.
Must not know: commands, HTTP.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

import duckdb
import pyarrow as pa

from tidemill.confluent.asking import Extent
from tidemill.confluent.clients import Kafka
from tidemill.duration import Duration, microseconds
from tidemill.errors import DurationError, NotAllowedError
from tidemill.extras import require_package
from tidemill.reading.ranges import OffsetRange
from tidemill.sql import commands
from tidemill.sql.binding import UNKNOWN_NAME, bind
from tidemill.sql.columns import Columns, Misfits, Shape
from tidemill.sql.commands import Copy, CreateView, DropView, Explain, Insert, ShowTables
from tidemill.sql.database import (
    FOR_LATEST,
    ask,
    declared,
    open_database,
    translation,
    tree_of,
    value_of,
    views,
)
from tidemill.sql.errors import (
    SqlError,
    StatementRefusedError,
    TooMuchToReadError,
    UnknownTableError,
)
from tidemill.sql.feed import Feed
from tidemill.sql.following import Follower, refused
from tidemill.sql.incremental import Plan
from tidemill.sql.incremental import plan as incremental_plan
from tidemill.sql.running import BATCH_ROWS, Running
from tidemill.sql.statement import LATEST, Bound, Needed, Uses, needed, uses
from tidemill.sql.topics import Scan, Topics
from tidemill.sql.views.topics import VIEWS
from tidemill.sql.windows import with_windows


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The part of one topic that a statement reads.

    Attributes:
        topic: its name.
        ranges: the offsets of each partition.
        columns: the columns of values that are parsed; empty if none is.
        sampled: the number of records that the columns are taken from.
        bytes: about how much is read.
    """

    topic: str
    ranges: tuple[OffsetRange, ...]
    columns: tuple[str, ...]
    sampled: int
    bytes: int

    @property
    def offsets(self) -> int:
        """The number of offsets: there may be fewer records."""
        return sum(each.size for each in self.ranges)


class Connection:
    """A connection in the sense of DB-API 2.0 (PEP 249); ``tidemill.sql.connect`` makes it.

    Args:
        kafka: the cluster.
        memory: DuckDB's memory limit.
        threads: DuckDB's threads; by default one for each core.
        timeout_s: the time limit of a statement, from its start to its last row.
        max_bytes: the most that a statement can read.
        schemas: columns of topics in DuckDB's types, as ``{"orders": "id BIGINT, at TIMESTAMP"}``.
            A topic without one is sampled.
        files: the only folder in which statements can use files, as in ``COPY``; None for none.
        read_only: whether only queries run.
        views: whether statements can read the materialized views of this machine.

    Attributes:
        max_bytes: the most that the next statement can read; None for no limit.
        hidden: patterns of topics that statements must not read; ``*`` and ``?`` are wildcards.
    """

    def __init__(
        self,
        kafka: Kafka,
        *,
        memory: str,
        threads: int | None,
        timeout_s: float | None,
        max_bytes: int | None,
        schemas: Mapping[str, str] | None,
        files: str | Path | None,
        read_only: bool,
        views: bool,
    ) -> None:
        self._kafka = kafka
        self._topics = Topics(kafka)
        self._memory, self._threads = memory, threads
        self._files = None if files is None else Path(files).absolute()
        self._read_only, self._views = read_only, views
        self._timeout_s = timeout_s
        self.max_bytes = max_bytes
        self.hidden: Sequence[str] = ()
        self._given = dict(schemas or {})
        self._declared = {name: declared(text) for name, text in (schemas or {}).items()}

    def cursor(self) -> Cursor:
        """Return a cursor."""
        return Cursor(self)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Return a cursor on the result of a statement."""
        return self.cursor().execute(statement, parameters)

    def commit(self) -> None:
        """Do nothing: there is nothing to commit (DB-API)."""

    def close(self) -> None:
        """Do nothing: statements hold their own resources (DB-API)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, statement: str) -> list[TopicPlan]:
        """Return what a statement would read, without reading it (except samples).

        Raises:
            SqlError: as ``execute`` says.
        """
        with translation(), self._database() as database:
            return [plan for plan, _ in self._plans(database, statement, Misfits())]

    def follow(
        self,
        statement: str,
        parameters: Sequence[Any] = (),
        *,
        start: Literal["beginning", "end"] = "end",
        watermark: Duration = "10 seconds",
        until_end: bool = False,
    ) -> Follower:
        """Return a query whose rows come as records come.

        It filters and projects the new records of one topic, which can be joined with ``$latest``
        tables; or it groups them by windows of ``tumble`` or ``hop``, with count, sum, min, max and
        avg. The rows of a window come when it is complete.

        Args:
            statement: the query.
            parameters: for the placeholders ``?``.
            start: where the topic is read from, unless a condition on ``_offset`` or a lower bound
                of ``_timestamp`` says so.
            watermark: how long the rows of a window are waited for, in the time of the rows.
            until_end: whether it ends at the end that the topic has now.

        Raises:
            StatementRefusedError: the query can't be followed; the hint has the pipeline that can.
            SqlError: it is malformed.
            UnknownTableError: a table is not a topic.
            DurationError: the watermark is malformed, or negative.
        """
        delay = timedelta(microseconds=microseconds(watermark))
        if delay < timedelta(0):
            raise DurationError(f"the watermark {watermark} is negative")
        explained = self._names_explained(statement, parameters)
        with contextlib.ExitStack() as opened, translation(), explained:
            database, misfits = opened.enter_context(self._database()), Misfits()
            plan = self._followed(database, statement)
            stop = threading.Event()
            feed = Feed(self._topics, plan, database, self._shape, misfits, stop)
            ends = {number: each.end for number, each in feed.extents[plan.source].items()}
            self._place(database, feed, plan, ends, start)
            ask(database, "SET lock_configuration = true")
            follower = Follower(
                database,
                plan,
                feed,
                parameters,
                watermark=delay,
                ends=ends if until_end else None,
                misfits=misfits,
                cancelled=stop,
            )
            opened.pop_all()  # the follower closes it
            return follower

    def _place(
        self,
        database: duckdb.DuckDBPyConnection,
        feed: Feed,
        plan: Plan,
        ends: dict[int, int],
        start: Literal["beginning", "end"],
    ) -> None:
        """Set where a query begins: where its conditions say, or else where ``start`` does."""
        places = [
            needed(bounds, lambda node, column: value_of(database, node, column))
            for bounds in plan.used.tables[plan.source]
        ]
        if any(each.first is not None or each.since_ms is not None for each in places):
            found = self._topics.ranges(plan.source, feed.extents[plan.source], places)
            feed.source.positions = ends | {each.partition: each.start for each in found}
        elif start == "end":
            feed.source.positions = dict(ends)

    def _followed(self, database: duckdb.DuckDBPyConnection, statement: str) -> Plan:
        """Return the plan of a query that is followed."""
        if copies := self._check_tables(uses(tree_of(database, statement))):
            raise StatementRefusedError(f"view {min(copies)} can't be followed", hint="")
        try:
            return incremental_plan(database, statement, endless=True)
        except StatementRefusedError as error:
            shapes = self._shapes(uses(tree_of(database, statement)).tables)
            raise refused(error, statement, shapes) from None

    @contextlib.contextmanager
    def _names_explained(self, query: str, parameters: Sequence[Any]) -> Iterator[None]:
        """Look with ``bind`` at a query that names something which does not exist."""
        try:
            yield
        except UNKNOWN_NAME:
            with self._database() as database:
                used = uses(tree_of(database, query))
            copies = self._check_tables(used)
            bind(query, self._shapes(used.tables.keys() - copies.keys()), parameters, copies)
            raise

    def _shapes(self, tables: Iterable[str]) -> dict[str, Shape]:
        topics = {table.removesuffix(LATEST) for table in tables}
        return {each: self._shape(each, self._topics.asking.extents(each)) for each in topics}

    def _shape(self, topic: str, extents: Mapping[int, Extent]) -> Shape:
        return self._declared.get(topic) or self._topics.sample(topic, extents)

    def _database(self) -> duckdb.DuckDBPyConnection:
        return open_database(self._memory, self._threads, self._files)

    def running(self) -> Running:
        """Return what ``start`` takes; used by ``Cursor``."""
        return Running(self._database(), self._timeout_s)

    def start(self, running: Running, statement: str, parameters: Sequence[Any]) -> None:
        """Start a statement; used by ``Cursor``. It can be cancelled meanwhile."""
        with running.guarded():
            self._start(running, statement, parameters)

    def _start(self, running: Running, statement: str, parameters: Sequence[Any]) -> None:
        command = commands.parse(statement)
        if isinstance(command, ShowTables):
            running.prepare(*_listed(sorted(self._topics.asking.names())))
            return
        query = statement
        if explained := isinstance(command, Explain):
            query, command = command.statement, commands.parse(command.statement)
            if isinstance(command, (CreateView, DropView, Explain, ShowTables)):
                raise StatementRefusedError("EXPLAIN is for statements that read topics")
        if isinstance(command, (Insert, Copy)):
            query = command.query
        if command is not None and self._read_only:
            raise StatementRefusedError("only queries are allowed here")
        if isinstance(command, (CreateView, DropView)):
            self._define(running, command)
            return
        if isinstance(command, Copy) and self._files is None:
            raise StatementRefusedError(
                "files are off", hint="Name a folder: --files DIR, or connect(files=...)."
            )
        plans = self._plans(running.database, query, running.misfits)
        if explained:
            running.prepare(*_explanation([plan for plan, _ in plans]))
            return
        self._read(running, plans)
        with self._names_explained(query, parameters):
            whole = with_windows(running.database, query)
            if isinstance(command, Insert):
                self._insert(running, command, whole, parameters)
            elif isinstance(command, Copy):
                self._copy(running, command, whole, parameters)
            else:
                running.prepare(whole, parameters)

    def _read(self, running: Running, plans: Sequence[tuple[TopicPlan, Columns]]) -> None:
        """Make the tables of a query."""
        total = sum(plan.bytes for plan, _ in plans)
        if self.max_bytes is not None and total > self.max_bytes:
            raise TooMuchToReadError(total, self.max_bytes)
        for number, (plan, columns) in enumerate(plans):
            scan = Scan(self._topics, plan.ranges, columns, running.cancelled)
            running.scans.append(scan)
            running.database.register(f"__scan_{number}", scan)
            for view in views(plan.topic, f"__scan_{number}", columns):
                ask(running.database, view)
            if plan.sampled and plan.columns:
                running.notes.append(
                    f"columns of {plan.topic} are taken from {plan.sampled} records"
                )
        ask(running.database, "SET lock_configuration = true")

    def _define(self, running: Running, command: CreateView | DropView) -> None:
        from tidemill.sql.views import reading

        if isinstance(command, DropView):
            reading.drop(self._kafka, command.name)
        else:
            names = self._topics.asking.names()
            if command.name in names:
                raise StatementRefusedError(f"a topic has the name {command.name}", hint="")
            for table in sorted(uses(tree_of(running.database, command.query)).tables):
                if (topic := table.removesuffix(LATEST)) in names:
                    continue
                if VIEWS in names and reading.exists(self._kafka, table):
                    hint = "Write its query as a part of this one."
                    raise StatementRefusedError(f"a view can't read the view {table}", hint=hint)
                raise _unknown(topic, names)
            reading.create(self._kafka, command, self._given)
        running.prepare("SELECT ? AS view", [command.name])

    def _insert(
        self, running: Running, command: Insert, query: str, parameters: Sequence[Any]
    ) -> None:
        if command.topic not in (names := self._topics.asking.names()):
            raise _unknown(command.topic, names)
        from tidemill.sql import inserting  # its producer takes a while to import

        running.prepare(query, parameters)
        described = running.description
        running.prepare(inserting.record_query(query, described, command.columns), parameters)
        with running.guarded():
            batches = inserting.checked(running.reader(BATCH_ROWS), described)
            running.changed = inserting.insert(self._kafka, command.topic, batches)
        running.prepare("SELECT ?::BIGINT AS records", [running.changed])

    def _copy(self, running: Running, command: Copy, query: str, parameters: Sequence[Any]) -> None:
        assert self._files is not None
        path = str(self._files / command.path).replace("'", "''")
        text = f"COPY ({query}) TO '{path}' {command.options}"
        if len(duckdb.extract_statements(text)) != 1:
            raise StatementRefusedError("there are several statements, and one can be run")
        ((running.changed, *_),) = ask(running.database, text, parameters)
        running.prepare("SELECT ?::BIGINT AS rows", [running.changed])

    def _plans(
        self, database: duckdb.DuckDBPyConnection, statement: str, misfits: Misfits
    ) -> list[tuple[TopicPlan, Columns]]:
        used = uses(tree_of(database, statement))
        for view, copy in self._check_tables(used).items():
            database.register(view, copy)
            del used.tables[view]
        by_topic: dict[str, list[list[Bound]]] = {}
        for table, places in used.tables.items():
            topic = table.removesuffix(LATEST)
            needs_all: list[list[Bound]] = [[]]
            latest = table.endswith(LATEST) and table != topic
            by_topic.setdefault(topic, []).extend(needs_all if latest else places)
        return [
            self._plan(database, topic, places, used, misfits) for topic, places in by_topic.items()
        ]

    def _check_tables(self, used: Uses) -> dict[str, Any]:
        """Check that all tables are topics or views, and return the copies of the views.

        Raises:
            UnknownTableError: one is neither.
            NotAllowedError: one is hidden.
        """
        for table in used.tables:
            topic = table.removesuffix(LATEST)
            if any(fnmatch.fnmatchcase(topic, pattern) for pattern in self.hidden):
                raise NotAllowedError(
                    f"topic {topic} has fields that are hidden here, so queries can't read it"
                )
        for table in used.qualified:
            if not _is_system(table):
                raise _unknown(table, self._topics.asking.names())
        if not used.tables:
            return {}
        names = self._topics.asking.names()
        others = {table for table in used.tables if table.removesuffix(LATEST) not in names}
        found: dict[str, Any] = {}
        if others and self._views and VIEWS in names:
            from tidemill.sql.views import reading

            found = reading.find(self._kafka, others)
        for table in sorted(others - found.keys()):
            raise _unknown(table, names)
        return found

    def _plan(
        self,
        database: duckdb.DuckDBPyConnection,
        topic: str,
        places: Sequence[Sequence[Bound]],
        used: Uses,
        misfits: Misfits,
    ) -> tuple[TopicPlan, Columns]:
        extents = self._topics.asking.extents(topic)
        shape = self._shape(topic, extents)
        wants: list[Needed] = [
            needed(bounds, lambda node, column: value_of(database, node, column))
            for bounds in places
        ]
        ranges = self._topics.ranges(topic, extents, wants)
        # One column at least: a batch without columns has no number of rows.
        record = FOR_LATEST if topic + LATEST in used.tables else {"_partition"}
        wanted = None if used.all_columns else frozenset(used.names) | record
        columns = Columns(shape, wanted, misfits)
        size = int(sum(each.size for each in ranges) * shape.record_bytes)
        fields = tuple(name for name in columns.schema.names if not name.startswith("_"))
        return TopicPlan(topic, tuple(ranges), fields, shape.sampled, size), columns


class Cursor:
    """A cursor in the sense of DB-API 2.0, with the rows as tuples, Arrow or data frames.

    Attributes:
        description: the columns of the result, as in PEP 249.
        arraysize: as in PEP 249.
        rowcount: how many rows a statement has written; -1 for a query.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._running: Running | None = None
        self.arraysize = 1

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Self:
        """Run a statement.

        Args:
            statement: one statement of SQL, in DuckDB's dialect. Topics are tables: a name with
                other characters than letters, digits and ``_`` is written in double quotes.
            parameters: for the placeholders ``?``.

        Raises:
            SqlError: it is malformed or fails.
            StatementRefusedError: it is not a query.
            UnknownTableError: a table is not a topic.
            TooMuchToReadError: it would read more than the limit.
            QueryEndedError: the time limit has passed.
            UnreachableError: no broker answers.
        """
        self.close()
        self._running = running = self._connection.running()
        try:
            self._connection.start(running, statement, parameters)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """The columns of the result."""
        return None if self._running is None else self._running.description

    @property
    def rowcount(self) -> int:
        """The number of rows that a statement has written; -1 for a query."""
        return -1 if self._running is None else self._running.changed

    @property
    def notes(self) -> list[str]:
        """Notes about the statement: where its columns are from."""
        return [] if self._running is None else list(self._running.notes)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the rows that were returned so far: values that did not fit."""
        misfits = Misfits() if self._running is None else self._running.misfits
        return [misfits.warning()] if misfits.count else []

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None at the end."""
        with (result := self._result()).guarded():
            row: tuple[Any, ...] | None = result.rows.fetchone()
            return row

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next rows."""
        with (result := self._result()).guarded():
            return list(result.rows.fetchmany(size or self.arraysize))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows that are left."""
        with (result := self._result()).guarded():
            return list(result.rows.fetchall())

    def arrow(self) -> pa.Table:
        """Return all rows as a table of Arrow."""
        with (result := self._result()).guarded():
            return result.reader(BATCH_ROWS).read_all()

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows as record batches of Arrow."""
        with (result := self._result()).guarded():
            reader = result.reader(rows)
        while True:
            with result.guarded():  # not while the caller has the batch
                if (batch := next(reader, None)) is None:
                    return
            yield batch

    def df(self) -> Any:
        """Return all rows as a data frame of pandas.

        Raises:
            TidemillError: the package pandas is missing. No row was read.
        """
        require_package("pandas")
        return self.arrow().to_pandas()

    def cancel(self) -> None:
        """End the statement, from another thread: what fetches rows raises an error."""
        if self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        """Free what the result holds."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def setinputsizes(self, sizes: object) -> None:
        """Do nothing (DB-API)."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing (DB-API)."""

    def _result(self) -> Running:
        if self._running is None:
            raise SqlError("there is no result", hint="Execute a statement first.")
        return self._running


# --- statements ----------------------------------------------------------------------------------


def _explanation(plans: Sequence[TopicPlan]) -> tuple[str, list[Any]]:
    """Return a statement, and its parameters, whose result says what would be read."""
    names = "topic, partitions, offsets, bytes, columns"
    if not plans:
        return f"SELECT * FROM (VALUES ('', 0, 0, 0, '')) AS t({names}) LIMIT 0", []
    rows = ", ".join(["(?, ?, ?, ?, ?)"] * len(plans))
    values: list[Any] = []
    for plan in plans:
        columns = ", ".join(plan.columns)
        values += [plan.topic, len(plan.ranges), plan.offsets, plan.bytes, columns]
    return f"SELECT * FROM (VALUES {rows}) AS t({names})", values


def _listed(names: Sequence[str]) -> tuple[str, list[Any]]:
    rows = ", ".join(["(?)"] * len(names))
    return f"SELECT name FROM (VALUES {rows or '(NULL)'}) AS t(name) WHERE name IS NOT NULL", [
        *names
    ]


def _unknown(table: str, names: set[str]) -> UnknownTableError:
    near = difflib.get_close_matches(table, names, 1)
    hint = f'Did you mean "{near[0]}"?' if near else "'tidemill topic list' shows what exists."
    if "." in table and table in names:
        hint = f'Write it in double quotes: "{table}".'
    return UnknownTableError(f"there is no topic {table}", hint=hint)


def _is_system(table: str) -> bool:
    return table.split(".")[0].lower() in ("information_schema", "pg_catalog")
