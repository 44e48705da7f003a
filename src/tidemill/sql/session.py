"""Run statements: DuckDB computes, and a Kafka client reads what it computes on.

Each statement has a DuckDB of its own in memory, without files, extensions and settings to change.
Must not know: commands, HTTP.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import duckdb
import pyarrow as pa

from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError
from tidemill.reading.ranges import OffsetRange
from tidemill.sql.columns import Columns, Misfits, Shape
from tidemill.sql.errors import (
    QueryEndedError,
    SqlError,
    StatementRefusedError,
    TooMuchToReadError,
    UnknownTableError,
)
from tidemill.sql.statement import Bound, Needed, Node, Uses, needed, uses
from tidemill.sql.topics import Scan, Topics

LATEST = "$latest"
_ENDED = "the statement was cancelled, or took longer than its time limit"
_ENDED_HINT = "Read less, or raise the limit."
_FOR_LATEST = {"_key", "_partition", "_offset", "_timestamp", "_value"}
"""Columns that a topic's table always has: they decide which record of a key is the latest."""
_BATCH_ROWS = 10_000
_KIND = re.compile(r"^(Parser|Binder|Catalog|Permission|Invalid Input) Error: (?=.)")
_INTEGERS = {"_offset": "({})::BIGINT", "_partition": "({})::BIGINT", "_timestamp": "epoch_ms({})"}


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
    """A connection in the sense of DB-API 2.0 (PEP 249). Nothing is changed through it.

    Args:
        kafka: the cluster.
        memory: DuckDB's memory limit.
        threads: DuckDB's threads; by default one for each core.
        timeout_s: the time limit of a statement, from its start to its last row.
        max_bytes: the most that a statement can read.
        schemas: columns of topics in DuckDB's types, as ``{"orders": "id BIGINT, at TIMESTAMP"}``.
            A topic without one is sampled.

    Attributes:
        max_bytes: the most that the next statement can read; None for no limit.
    """

    def __init__(
        self,
        kafka: Kafka,
        *,
        memory: str = "1GB",
        threads: int | None = None,
        timeout_s: float | None = None,
        max_bytes: int | None = None,
        schemas: Mapping[str, str] | None = None,
    ) -> None:
        self._topics = Topics(kafka)
        self._config = _database_config(memory, threads)
        self._timeout_s = timeout_s
        self.max_bytes = max_bytes
        self._declared = {name: _declared(text) for name, text in (schemas or {}).items()}

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
        with self._database() as database:
            return [plan for plan, _ in self._plans(database, statement, Misfits())]

    def _database(self) -> duckdb.DuckDBPyConnection:
        try:
            database = duckdb.connect(config=self._config)
        except duckdb.Error as error:  # a limit of memory or threads
            raise SqlError(_lower(error)) from error
        _ask(database, "SET TimeZone = 'UTC'")
        return database

    def start(self, statement: str, parameters: Sequence[Any]) -> Running:
        """Start a statement; used by ``Cursor``."""
        running = Running(self._database(), self._timeout_s)
        try:
            self._start(running, statement, parameters)
        except BaseException as error:
            running.close()
            found = running.translated(error)
            if found is error:
                raise
            raise found from error
        return running

    def _start(self, running: Running, statement: str, parameters: Sequence[Any]) -> None:
        database = running.database
        text, explained = _without_explain(statement)
        if text.lower() in ("show tables", "show all tables"):
            running.prepare(*_listed(sorted(self._topics.names())))
            return
        plans = self._plans(database, text, running.misfits)
        if explained:
            running.prepare(*_explanation([plan for plan, _ in plans]))
            return
        total = sum(plan.bytes for plan, _ in plans)
        if self.max_bytes is not None and total > self.max_bytes:
            raise TooMuchToReadError(total, self.max_bytes)
        for number, (plan, columns) in enumerate(plans):
            scan = Scan(self._topics, plan.ranges, columns, running.cancelled)
            running.scans.append(scan)
            database.register(f"__scan_{number}", scan)
            for view in _views(plan.topic, f"__scan_{number}", columns):
                _ask(database, view)
            if plan.sampled and plan.columns:
                running.notes.append(
                    f"columns of {plan.topic} are taken from {plan.sampled} records"
                )
        _ask(database, "SET lock_configuration = true")
        running.prepare(text, parameters)

    def _plans(
        self, database: duckdb.DuckDBPyConnection, statement: str, misfits: Misfits
    ) -> list[tuple[TopicPlan, Columns]]:
        used = uses(_tree(database, statement))
        by_topic: dict[str, list[list[Bound]]] = {}
        names: set[str] | None = None
        for table in used.qualified:
            if not _is_system(table):
                raise _unknown(table, self._topics.names())
        for table, places in used.tables.items():
            topic = table.removesuffix(LATEST)
            names = self._topics.names() if names is None else names
            if topic not in names:
                raise _unknown(table, names)
            needs_all: list[list[Bound]] = [[]]
            latest = table.endswith(LATEST) and table != topic
            by_topic.setdefault(topic, []).extend(needs_all if latest else places)
        return [
            self._plan(database, topic, places, used, misfits) for topic, places in by_topic.items()
        ]

    def _plan(
        self,
        database: duckdb.DuckDBPyConnection,
        topic: str,
        places: Sequence[Sequence[Bound]],
        used: Uses,
        misfits: Misfits,
    ) -> tuple[TopicPlan, Columns]:
        extents = self._topics.extents(topic)
        shape = self._declared.get(topic) or self._topics.sample(topic, extents)
        wants: list[Needed] = [
            needed(bounds, lambda node, column: _value(database, node, column)) for bounds in places
        ]
        ranges = self._topics.ranges(topic, extents, wants)
        wanted = None if used.all_columns else frozenset(used.names) | _FOR_LATEST
        columns = Columns(shape, wanted, misfits)
        size = int(sum(each.size for each in ranges) * shape.record_bytes)
        fields = tuple(name for name in columns.schema.names if not name.startswith("_"))
        return TopicPlan(topic, tuple(ranges), fields, shape.sampled, size), columns


class Running:
    """A statement that runs: its DuckDB, what it reads, and its time limit.

    Attributes:
        database: has the result.
        scans: the streams that it reads.
        misfits: the values that did not fit the columns.
        cancelled: set when it is to end.
        notes: what is worth knowing about the result.
    """

    def __init__(self, database: duckdb.DuckDBPyConnection, timeout_s: float | None) -> None:
        self.database = database
        self.scans: list[Scan] = []
        self.misfits = Misfits()
        self.cancelled = threading.Event()
        self.notes: list[str] = []
        self._text = ""
        self._parameters: list[Any] = []
        self._relation: Any = None
        self._has_begun = False
        self._timer: threading.Timer | None = None
        if timeout_s is not None:
            self._timer = threading.Timer(timeout_s, self.cancel)
            self._timer.daemon = True
            self._timer.start()

    def prepare(self, text: str, parameters: Sequence[Any]) -> None:
        """Bind a statement. It begins when its first row is asked for."""
        self._text, self._parameters = text, list(parameters)
        self._relation = self.database.sql(text, params=self._parameters or None)

    @property
    def description(self) -> list[tuple[Any, ...]]:
        """The columns of the result, as in PEP 249."""
        return [] if self._relation is None else list(self._relation.description)

    @property
    def rows(self) -> duckdb.DuckDBPyConnection:
        """The result, for its rows as tuples."""
        if not self._has_begun:
            self._has_begun = True
            self.database.execute(self._text, self._parameters or None)
        return self.database

    def reader(self, rows: int) -> pa.RecordBatchReader:
        """Return the result as record batches, none of which is kept."""
        self._has_begun = True
        return _reader(self._relation, rows)

    def cancel(self) -> None:
        """End the statement. What fetches its rows raises ``QueryEndedError``."""
        self.cancelled.set()
        self.database.interrupt()

    def close(self) -> None:
        """Free everything."""
        if self._timer is not None:
            self._timer.cancel()
        self.database.close()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Translate errors of fetching rows."""
        if self.cancelled.is_set():
            raise QueryEndedError(_ENDED, hint=_ENDED_HINT)
        try:
            yield
        except BaseException as error:
            found = self.translated(error)
            if found is error:
                raise
            raise found from error

    def translated(self, error: BaseException) -> BaseException:
        """Return an error as one of tidemill's."""
        if isinstance(error, TidemillError) or not isinstance(error, Exception):
            return error
        failure = next((scan.failure for scan in self.scans if scan.failure is not None), None)
        if failure is not None and not isinstance(failure, QueryEndedError):
            return failure
        if self.cancelled.is_set() or isinstance(error, duckdb.InterruptException):
            return QueryEndedError(_ENDED, hint=_ENDED_HINT)
        if isinstance(error, (duckdb.Error, pa.ArrowException)):
            return SqlError(_lower(error))
        return error


class Cursor:
    """A cursor in the sense of DB-API 2.0, with the rows as tuples, Arrow or data frames.

    Attributes:
        description: the columns of the result, as in PEP 249.
        arraysize: as in PEP 249.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._running: Running | None = None
        self.arraysize = 1
        self.rowcount = -1

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
        self._running = self._connection.start(statement, parameters)
        return self

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """The columns of the result."""
        return None if self._running is None else self._running.description

    @property
    def notes(self) -> list[str]:
        """Notes about the statement: where its columns are from."""
        return [] if self._running is None else list(self._running.notes)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the rows that were returned so far: values that did not fit."""
        misfits = Misfits() if self._running is None else self._running.misfits
        if not misfits.count:
            return []
        what = "value does" if misfits.count == 1 else "values do"
        return [
            f"{misfits.count} {what} not fit the columns, which are null there; "
            f"the first: {misfits.first}"
        ]

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
            return result.reader(_BATCH_ROWS).read_all()

    def batches(self, rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows as record batches of Arrow."""
        with (result := self._result()).guarded():
            yield from result.reader(rows)

    def df(self) -> Any:
        """Return all rows as a data frame of pandas."""
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


def _database_config(memory: str, threads: int | None) -> dict[str, Any]:
    return {
        "enable_external_access": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
        "memory_limit": memory,
        **({} if threads is None else {"threads": str(threads)}),
    }


# --- statements ----------------------------------------------------------------------------------


def _without_explain(statement: str) -> tuple[str, bool]:
    text = statement.strip().rstrip(";").strip()
    if text[:8].lower() == "explain " and not text[8:].lstrip().lower().startswith("analyze"):
        return text[8:], True
    return text, False


def _tree(database: duckdb.DuckDBPyConnection, statement: str) -> Node:
    try:
        found = duckdb.extract_statements(statement)
    except duckdb.Error as error:
        raise SqlError(_lower(error)) from error
    if len(found) != 1:
        raise StatementRefusedError(f"there are {len(found)} statements, and one can be run")
    if found[0].type.name == "MULTI":
        hint = "Name the values: PIVOT t ON c IN (1, 2) USING sum(n)."
        raise StatementRefusedError("PIVOT without its values can't be run", hint=hint)
    if found[0].type.name != "SELECT":
        raise StatementRefusedError(f"a statement of kind {found[0].type.name} is not a query")
    ((text,),) = _ask(database, "SELECT json_serialize_sql(?::VARCHAR)", [found[0].query])
    tree: Node = json.loads(text)
    if tree.get("error"):
        raise StatementRefusedError(f"this statement can't be run: {tree.get('error_message')}")
    return tree


def _value(database: duckdb.DuckDBPyConnection, node: Node, column: str) -> int | None:
    """Return the value of an expression without columns, as an integer."""
    ((one,),) = _ask(database, "SELECT json_serialize_sql('SELECT 1')")
    tree = json.loads(one)
    tree["statements"][0]["node"]["select_list"] = [node]
    try:
        ((text,),) = _ask(database, "SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)])
        expression = str(text).removeprefix("SELECT ")
        kind = "TIMESTAMPTZ" if column == "_timestamp" else "BIGINT"
        asked = _INTEGERS[column].format(f"CAST(({expression}) AS {kind})")
        ((found,),) = _ask(database, f"SELECT {asked}")
    except duckdb.Error:
        return None
    return None if found is None else int(found)


def _views(topic: str, scan: str, columns: Columns) -> Iterator[str]:
    """Yield the statements that make the tables of a topic."""
    if columns.shape.captured:
        fields = [
            f"CASE WHEN op = 'd' THEN before.{_quoted(f.name)} ELSE after.{_quoted(f.name)} END "
            f"AS {_quoted(f.name)}"
            for f in columns.shape.fields["after"]
        ]
        more = "op AS _op, (op IS NULL OR op = 'd') AS _deleted"
        record = ", ".join(columns.record)
        body = f"SELECT {', '.join(fields)}, {more}, {record} FROM {scan}"
        there = "NOT _deleted"
    else:
        body = f"SELECT * FROM {scan}"
        there = "_value IS NOT NULL"
    yield f"CREATE VIEW {_quoted(topic)} AS {body}"
    # In a partition the last record counts, as in compaction. A key is in several partitions only
    # if the topic got more of them, or a producer chose them: then the time decides.
    last = (
        f"SELECT * FROM {_quoted(topic)} WHERE _key IS NOT NULL "
        "QUALIFY row_number() OVER (PARTITION BY _key, _partition ORDER BY _offset DESC) = 1"
    )
    yield (
        f"CREATE VIEW {_quoted(topic + LATEST)} AS SELECT * FROM ({last}) QUALIFY {there} AND "
        "row_number() OVER (PARTITION BY _key ORDER BY _timestamp DESC, _partition) = 1"
    )


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


def _declared(text: str) -> Shape:
    """Return the columns that a user has declared, in DuckDB's types."""
    with duckdb.connect() as database:
        try:
            _ask(database, f"CREATE TABLE t ({text})")
            found = _reader(database.sql("SELECT * FROM t"), 1).schema
        except duckdb.Error as error:
            raise SqlError(f"invalid columns {text!r}: {error}") from error
    return Shape({each.name: each.type for each in found})


def _unknown(table: str, names: set[str]) -> UnknownTableError:
    near = difflib.get_close_matches(table, names, 1)
    hint = f'Did you mean "{near[0]}"?' if near else "'tidemill topic list' shows what exists."
    if "." in table and table in names:
        hint = f'Write it in double quotes: "{table}".'
    return UnknownTableError(f"there is no topic {table}", hint=hint)


def _is_system(table: str) -> bool:
    return table.split(".")[0].lower() in ("information_schema", "pg_catalog")


def _ask(
    database: duckdb.DuckDBPyConnection, statement: str, parameters: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Run a statement of our own to its end: a result that is not fetched blocks the next one."""
    return list(database.execute(statement, list(parameters) or None).fetchall())


def _reader(database: Any, rows: int) -> pa.RecordBatchReader:
    """Return the result as record batches. DuckDB 2 has another name for it."""
    name = "to_arrow_reader" if hasattr(database, "to_arrow_reader") else "fetch_record_batch"
    return getattr(database, name)(rows)


def _lower(error: Exception) -> str:
    """Return DuckDB's words without the name of the kind: "Parser Error: syntax error ..."."""
    text = _KIND.sub("", str(error).strip())
    return text[:1].lower() + text[1:]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
