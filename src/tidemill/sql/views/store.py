"""A materialized view: a file of DuckDB with its rows, and the offsets that they are made of.

Each batch is one transaction of DuckDB, so that after a kill nothing is missing and nothing is
counted twice. DuckDB lets one process open the file; others read the copy that it publishes. Must
not know: the worker, commands.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

from tidemill.confluent.asking import Extent
from tidemill.confluent.clients import Kafka
from tidemill.errors import DataLossError
from tidemill.sql import feed
from tidemill.sql.binding import UNKNOWN_NAME, bind
from tidemill.sql.columns import Columns, Misfits, Shape
from tidemill.sql.database import (
    FOR_LATEST,
    ask,
    declared,
    open_database,
    quoted,
    translation,
    tree_of,
)
from tidemill.sql.errors import (
    OtherTopicError,
    SqlError,
    StatementRefusedError,
    UnknownTableError,
)
from tidemill.sql.feed import Feed, Latest, Tail, advanced, firsts
from tidemill.sql.incremental import Plan, merge, plan
from tidemill.sql.statement import LATEST, uses
from tidemill.sql.topics import Topics
from tidemill.sql.views import files
from tidemill.sql.views.definition import Definition

PUBLISHED = "published.duckdb"
"""The file of the copy, in the folder of the view. Its table has the name of the view."""
_FILE, _NEW = "view.duckdb", "new.duckdb"
_STATE, _ROWS = "__state", "__rows"
_LOST_HINT = "CREATE OR REPLACE MATERIALIZED VIEW makes it again, from what its topics still have."
_DAMAGED_HINT = "Restore the file, or drop the view and create it again: its topics are read again."


def check(definition: Definition, topics: Topics) -> None:
    """Check that a query can be kept current, and that its topics have the columns that it names.

    Raises:
        SqlError: it can't, they don't, or it is malformed.
    """
    with translation(), open_database(definition.memory, 1) as database:
        given = {topic: declared(text) for topic, text in definition.columns.items()}
        _plan(database, definition.query)
        tables = uses(tree_of(database, definition.query)).tables
        shapes = {
            topic: given.get(topic) or topics.sample(topic, topics.asking.extents(topic))
            for topic in {table.removesuffix(LATEST) for table in tables}
        }
    if all(shape.fields for shape in shapes.values()):  # others get columns later
        bind(definition.query, shapes)


def _plan(database: duckdb.DuckDBPyConnection, query: str) -> Plan | None:
    """Return the plan of a query; None if it reads ``$latest`` tables only, which need none."""
    used = uses(tree_of(database, query))
    if used.qualified:
        raise StatementRefusedError(f"{sorted(used.qualified)[0]} is not a topic")
    if used.tables and all(table.endswith(LATEST) for table in used.tables):
        return None
    made = plan(database, query)
    if made.limit is not None:
        raise StatementRefusedError("a view can't have LIMIT")
    return made


class Store:
    """The file of a view, open. Use it in one thread.

    If the definition or a topic is not the one that the file was made of, it is made again.

    Args:
        folder: has the files of all views.
        stop: set when reading is to end.

    Attributes:
        published: the copy for readers; it exists after ``publish``.

    Raises:
        SqlError: the query can't be kept current, or another process has the file.
        UnknownTableError: a topic does not exist.
        UnreachableError: no broker answers.
    """

    def __init__(
        self, folder: Path, definition: Definition, kafka: Kafka, stop: threading.Event
    ) -> None:
        self._definition, self._stop = definition, stop
        self._topics, self._misfits = Topics(kafka), Misfits()
        own = folder / definition.name
        own.mkdir(parents=True, exist_ok=True)
        self._own = own.resolve()
        self.published = self._own / PUBLISHED
        files.mark(self._own, files.board(self._topics.asking))
        self._database = self._open()
        try:
            self._identity = self._identify()
            known = self._stored()
            # Another definition, or an attempt to open it that failed: its tables can lack columns.
            if {"version": "", **known, "shapes": None} != self._identity:
                self._database.close()
                (self._own / _FILE).unlink()
                self._database, known = self._open(), {}
            self._shapes = {
                topic: _shape_from(each) for topic, each in (known.get("shapes") or {}).items()
            }
            with translation(), self._columns_are_known():
                self._begin()
                self._database.sql(self._result)
                if not known:
                    self._store()
            self._goals = {
                topic: self._topics.asking.ends(topic) for topic in self._read_by_batches()
            }
        except BaseException:
            self._database.close()
            raise

    def advance(self) -> int:
        """Take over new records, and return how many offsets; 0 if there is none.

        Raises:
            SqlError: an expression of the query fails.
            DataLossError: records were removed before they were read.
            OtherTopicError: a topic was created again.
            UnknownTableError: a topic was deleted.
            UnreachableError: no broker answers.
        """
        try:
            with translation():
                if self._feed is not None:
                    count = self._feed.read()
                    if count:
                        with self._transaction():
                            self._take(self._feed)
                    return count
                return sum(self._update(each) for each in self._tables)
        except DataLossError as error:
            raise DataLossError(str(error), hint=_LOST_HINT) from error
        except OtherTopicError as error:
            raise OtherTopicError(str(error), hint="The view is made again by itself.") from error

    @property
    def is_current(self) -> bool:
        """Whether it has all that its topics had when it was opened; a copy should have no less."""
        read = self._read_by_batches()
        self._goals = {
            topic: ends
            for topic, ends in self._goals.items()
            if any(read[topic].get(number, 0) < end for number, end in ends.items())
        }
        return not self._goals

    def publish(self) -> None:
        """Replace the copy by one with the present rows."""
        new = self._own / _NEW
        new.unlink(missing_ok=True)
        path, name = str(new).replace("'", "''"), quoted(self._definition.name)
        with translation():
            ask(self._database, f"ATTACH '{path}' AS __copy")
            try:
                ask(self._database, f"CREATE TABLE __copy.{name} AS FROM ({self._result})")
            finally:
                ask(self._database, "DETACH __copy")
        os.replace(new, self.published)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the present rows."""
        with translation():
            return ask(self._database, self._result)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the file --------------------------------------------------------------------------------

    def _open(self) -> duckdb.DuckDBPyConnection:
        try:
            database = open_database(self._definition.memory, None, self._own, self._own / _FILE)
        except SqlError as error:
            if "not a valid" not in str(error):
                raise
            raise SqlError(str(error), hint=_DAMAGED_HINT) from error
        ask(database, "CREATE TABLE IF NOT EXISTS __meta (text VARCHAR)")
        ask(
            database,
            'CREATE TABLE IF NOT EXISTS __offsets (topic VARCHAR, "partition" INT, next BIGINT)',
        )
        return database

    def _identify(self) -> dict[str, Any]:
        """Return what the rows depend on: the definition, and which topics it reads."""
        tables = uses(tree_of(self._database, self._definition.query)).tables
        topics = sorted({table.removesuffix(LATEST) for table in tables})
        ids = {topic: self._topics.asking.identity(topic) for topic in topics}
        for topic, id_ in ids.items():
            if id_ is None:
                raise UnknownTableError(f"there is no topic {topic}")
        definition = self._definition
        return {
            "query": definition.query,
            "columns": definition.columns,
            "version": definition.version,
            "topics": ids,
            "shapes": None,
        }

    def _stored(self) -> dict[str, Any]:
        found = ask(self._database, "SELECT text FROM __meta")
        return dict(json.loads(found[0][0])) if found else {}

    def _store(self) -> None:
        shapes = {topic: _shape_text(shape) for topic, shape in self._shapes.items()}
        text = json.dumps({**self._identity, "shapes": shapes})
        ask(self._database, "INSERT INTO __meta VALUES (?)", [text])

    def _positions(self, topic: str) -> dict[int, int]:
        asked = 'SELECT "partition", next FROM __offsets WHERE topic = ?'
        return {int(number): int(end) for number, end in ask(self._database, asked, [topic])}

    def _set_positions(self, topic: str, positions: Mapping[int, int]) -> None:
        ask(self._database, "DELETE FROM __offsets WHERE topic = ?", [topic])
        for number, end in positions.items():
            ask(self._database, "INSERT INTO __offsets VALUES (?, ?, ?)", [topic, number, end])

    def _read_by_batches(self) -> dict[str, dict[int, int]]:
        """Return the next offsets of the topics that ``advance`` reads, by partition."""
        if self._feed is not None:
            return {self._plan_.source: self._feed.source.positions}
        return {table.tail.topic: table.tail.positions for table in self._tables}

    # --- rows ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make the tables that are missing, and what reads the topics."""
        query, ids = self._definition.query, self._identity["topics"]
        made = _plan(self._database, query)
        self._feed: Feed | None = None
        self._tables: list[Latest] = []
        if made is None:
            self._result = query
            used = uses(tree_of(self._database, query))
            wanted = None if used.all_columns else frozenset(used.names) | FOR_LATEST
            for table in used.tables:
                topic = table.removesuffix(LATEST)
                extents = self._topics.asking.extents(topic)
                columns = Columns(self._shape(topic, extents), wanted, self._misfits)
                positions = firsts(extents) | self._positions(topic)
                place = topic, columns, positions, ids[topic], self._stop
                tail = Tail(self._topics, *place)
                self._tables.append(Latest(self._database, tail, kept=True))
            return
        self._plan_ = made
        self._feed = Feed(
            self._topics, made, self._database, self._shape, self._misfits, self._stop, ids
        )
        self._feed.source.positions |= self._positions(made.source)
        if made.result:
            merge(self._database, made, _STATE)
            self._result = made.result.format(_STATE)
        else:
            batch = f"FROM ({made.batch}) LIMIT 0"
            ask(self._database, f"CREATE TABLE IF NOT EXISTS {_ROWS} AS {batch}")
            self._result = f"SELECT * FROM {_ROWS}"

    def _take(self, source: Feed) -> None:
        if self._plan_.result:
            merge(self._database, self._plan_, _STATE)
        else:
            ask(self._database, f"INSERT INTO {_ROWS} {self._plan_.batch}")
        self._set_positions(self._plan_.source, source.source.positions)

    def _update(self, table: Latest) -> int:
        tail = table.tail
        before = dict(tail.positions)
        new = tail.read(feed.BATCH)
        if new is None:
            return 0
        with self._transaction():
            table.add(new)
            self._set_positions(tail.topic, tail.positions)
        return advanced(before, tail.positions)

    def _shape(self, topic: str, extents: Mapping[int, Extent]) -> Shape:
        if topic not in self._shapes:
            text = self._definition.columns.get(topic)
            sampled = text is None
            self._shapes[topic] = (
                self._topics.sample(topic, extents) if sampled else declared(str(text))
            )
        return self._shapes[topic]

    @contextlib.contextmanager
    def _columns_are_known(self) -> Iterator[None]:
        """Say in the user's words what is not found, and if no record has shown any column yet."""
        try:
            yield
        except UNKNOWN_NAME as error:
            bare = next((name for name, shape in self._shapes.items() if not shape.fields), None)
            if bare is None:
                bind(self._definition.query, self._shapes)
                raise
            raise SqlError(
                f"topic {bare} has no JSON objects yet, so its columns are not known",
                hint="The view begins with the first ones, or when its definition has columns.",
            ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        ask(self._database, "BEGIN")
        try:
            yield
        except BaseException:
            with contextlib.suppress(duckdb.Error):  # it is aborted already
                ask(self._database, "ROLLBACK")
            raise
        ask(self._database, "COMMIT")


def _shape_text(shape: Shape) -> dict[str, Any]:
    schema = pa.schema(list(shape.fields.items())).serialize().to_pybytes()
    return {
        "fields": base64.b64encode(schema).decode(),
        "text_keys": shape.text_keys,
        "captured": shape.captured,
    }


def _shape_from(found: Mapping[str, Any]) -> Shape:
    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(found["fields"])))
    fields = {each.name: each.type for each in schema}
    return Shape(fields, found["text_keys"], found["captured"])
