"""Measures the sinks that follow a table: rows with versions, from Arrow, without Spark.

Each sink writes batches of 20,000 rows: new keys, then the same keys again, then a deletion of each
fourth key. Servers run from Debian's binaries; a sink whose server is not installed is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from tests.support.elasticsearch import AUTHORIZATION, fake_elasticsearch
from tests.support.mariadb import PASSWORD, USER, mariadb
from tests.support.postgres import postgres
from tests.support.processes import NotInstalledError
from tests.support.redis import redis_server

from bench.report import Section, Table
from bench.run import Run
from tidemill.spark.sinks.database.duckdb import DuckDBTable
from tidemill.spark.sinks.database.mysql import MySqlTable
from tidemill.spark.sinks.database.postgres import PostgresTable
from tidemill.spark.sinks.database.rows import Column, Layout, prepare
from tidemill.spark.sinks.database.sqlite import SqliteTable
from tidemill.spark.sinks.documents.elasticsearch import ElasticsearchSink
from tidemill.spark.sinks.documents.redis import RedisSink
from tidemill.spark.sinks.documents.tantivy import TantivySink
from tidemill.spark.sinks.history.duckdb import HistoryTable

BATCH = 20_000
NOTE = (
    f"Rows of 120 B with a version each, in batches of {BATCH:,}; one process writes. New: keys "
    "that the sink does not have. Again: newer versions of the same keys. Deleted: each fourth "
    "key. CPU is that of the writing process, not of a server. The server of ElasticsearchSink is "
    "the tests' own, in the same process: its figures show the cost of the client and of a server "
    "in Python."
)
_TIMED = Column("valid_from", "timestamp")
_COLUMNS = (Column("id", "bigint"), Column("name", "string"), Column("seats", "int"))


def section(run: Run) -> Section:
    """Measure all sinks, one after the other."""
    batches = 2 if run.options.quick else 5
    table = Table(
        "Followers: sinks of rows with versions",
        ["sink", "new rows/s", "again rows/s", "deleted rows/s", "CPU s per 10^6 rows"],
        note=NOTE,
    )
    for name, make in _SINKS.items():
        folder = run.options.folder / f"follow-{len(table.rows)}-{name}"
        folder.mkdir()
        try:
            with make(folder) as write:
                table.rows.append([name, *_measure(write, batches, history="History" in name)])
        except NotInstalledError as error:
            print(f"{name}: {error}")
    return Section("followers", [table])


Write = Callable[[pa.Table, Layout], None]


def _measure(write: Write, batches: int, *, history: bool) -> list[float]:
    columns = (*_COLUMNS, _TIMED) if history else _COLUMNS
    layout = Layout(columns, ("id",), deletes=True, versioned=True)
    found: list[float] = []
    rows, processor = 0, time.process_time()
    for turn, step in (("new", 1), ("again", 1), ("deleted", 4)):
        prepared = [_rows(layout, turn, number, step) for number in range(batches)]
        began = time.perf_counter()
        for each in prepared:
            write(each, layout)
        count = sum(each.num_rows for each in prepared)
        found.append(round(count / (time.perf_counter() - began)))
        rows += count
    return [*found, round((time.process_time() - processor) / rows * 1e6, 2)]


def _rows(layout: Layout, turn: str, batch: int, step: int) -> pa.Table:
    ids = range(batch * BATCH, (batch + 1) * BATCH, step)
    version = {"new": 1, "again": 2, "deleted": 3}[turn] << 40
    count = len(ids)
    content: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "name": [f"{turn} {number} {'x' * 90}" for number in ids],
        "seats": pa.array([number % 300 for number in ids], pa.int32()),
        "_version": pa.array([version + number for number in ids], pa.int64()),
        "_deleted": [turn == "deleted"] * count,
    }
    if _TIMED in layout.columns:
        times = pa.array([version // 1000] * count, pa.int64())
        content["valid_from"] = times.cast(pa.timestamp("us", tz="UTC"))
        return pa.table(content)
    return prepare(pa.table(content), layout, "bench")


@contextmanager
def _file_table(kind: Any, folder: Path) -> Iterator[Write]:
    table = kind(folder / "data.db", "t", "id")
    yield lambda rows, layout: table.apply(rows, layout, 0)
    table.close()


@contextmanager
def _postgres(folder: Path) -> Iterator[Write]:
    with postgres(folder / "log") as dsn:
        table = PostgresTable(dsn, "t", "id")
        yield lambda rows, layout: table.apply(rows, layout, 0)
        table.close()


@contextmanager
def _mariadb(folder: Path) -> Iterator[Write]:
    with mariadb(folder / "log") as server, ExitStack() as stack:
        connection = stack.enter_context(server.connect())
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE bench")
        os.environ["MYSQL_PWD"] = PASSWORD
        stack.callback(os.environ.pop, "MYSQL_PWD")
        socket = quote(server.socket, safe="")
        table = MySqlTable(f"mysql://{USER}@localhost/bench?unix_socket={socket}", "t", "id")
        stack.callback(table.close)
        yield lambda rows, layout: table.apply(rows, layout, 0)


@contextmanager
def _redis(folder: Path) -> Iterator[Write]:
    with redis_server(folder / "log") as url:
        store = RedisSink("id", prefix="t", url=url).store()
        yield lambda rows, layout: store.apply(rows, layout, 0)
        store.close()


@contextmanager
def _tantivy(folder: Path) -> Iterator[Write]:
    store = TantivySink("id", path=folder / "index", text="name").store()
    yield lambda rows, layout: store.apply(rows, layout, 0)
    store.close()


@contextmanager
def _elasticsearch(folder: Path) -> Iterator[Write]:
    os.environ["ELASTICSEARCH_API_KEY"] = AUTHORIZATION.split()[1]
    try:
        with fake_elasticsearch() as server:
            store = ElasticsearchSink("id", index="t", url=server.url).store()
            yield lambda rows, layout: store.apply(rows, layout, 0)
    finally:
        del os.environ["ELASTICSEARCH_API_KEY"]


_SINKS: dict[str, Callable[[Path], Any]] = {
    "SqliteSink": partial(_file_table, SqliteTable),
    "DuckDBSink": partial(_file_table, DuckDBTable),
    "PostgresSink": _postgres,
    "MySqlSink": _mariadb,
    "RedisSink": _redis,
    "TantivySink": _tantivy,
    "ElasticsearchSink": _elasticsearch,
    "DuckDBHistorySink": partial(_file_table, HistoryTable),
}
