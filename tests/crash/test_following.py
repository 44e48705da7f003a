"""Redis, DuckDB and a search index follow a table of SQLite while all that runs is killed.

The source and the pipeline are declared in ``tidemill.toml``, so both are workers of ``serve``. At
the end, each place has what a SELECT has.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
import redis
import tantivy

from tests.cli.conftest import CommandLine
from tests.crash.driver_process import kill
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import poll_until, skip_if_missing
from tests.support.redis import redis_server

pytestmark = [pytest.mark.crash, pytest.mark.separate, pytest.mark.spark, pytest.mark.timeout(1700)]

Rows = dict[int, tuple[str, int | None]]
PIPELINE, SOURCES, BROKER, JVM = "pipeline", "sources", "broker", "the pipeline's JVM"
KILLS = rounds("CRASH_FOLLOWING_KILLS", normal=1, nightly=100)
IDS, WAIT_S = 40, 600.0

TOML = """
[[source]]
name = "shop"
kind = "sqlite"
database.path = "shop.db"
"""
PIPELINE_TOML = """
[[pipeline]]
file = "follow.py"
master = "local[1]"
"""
FOLLOW = """
from tidemill.spark import DuckDBSink, Pipeline, RedisSink, TantivySink

p = Pipeline("follow")
p.table(
    "item",
    topic="shop.main.item",
    format="debezium",
    key="id",
    schema="id BIGINT, name STRING, n BIGINT",
)
SINKS = {{
    "cache": RedisSink("id", prefix="item", url="{redis}"),
    "duck": DuckDBSink("item", "id", path="{folder}/item.duckdb"),
    "search": TantivySink("id", path="{folder}/index", text="name"),
}}
for name, sink in SINKS.items():
    p.query(sink=sink, name=name, trigger="100 milliseconds")(lambda item: item.changes)
"""


class Shop:
    """The application: it changes its table all the time, also while nothing captures it."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self._path, self._dice = path, dice
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None
        self.changes = 0
        with closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL, n INTEGER)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=60, isolation_level=None)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Rows:
        """End, and return the rows."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(60)
        if self.failure is not None:
            raise self.failure
        return self.rows()

    def rows(self) -> Rows:
        with closing(self._connect()) as db:
            found = db.execute("SELECT id, name, n FROM item").fetchall()
        return {number: (name, n) for number, name, n in found}

    def _run(self) -> None:
        try:
            with closing(self._connect()) as db:
                while not self._stop.wait(self._dice.random() * 0.02):
                    db.execute("BEGIN IMMEDIATE")
                    for _ in range(self._dice.randint(1, 8)):
                        self._change(db)
                    db.execute("ROLLBACK" if self._dice.random() < 0.1 else "COMMIT")
        except BaseException as error:  # `stop` raises it
            self.failure = error

    def _change(self, db: sqlite3.Connection) -> None:
        number, other = (self._dice.randrange(IDS) for _ in range(2))
        self.changes += 1
        row = (f"name {self.changes}", self._dice.choice([None, self.changes]), number)
        kind = self._dice.random()
        if kind < 0.5:
            db.execute("INSERT OR IGNORE INTO item (name, n, id) VALUES (?, ?, ?)", row)
            db.execute("UPDATE item SET name = ?, n = ? WHERE id = ?", row)
        elif kind < 0.8:
            db.execute("DELETE FROM item WHERE id = ?", (number,))
        else:  # the key itself
            db.execute("UPDATE OR IGNORE item SET id = ? WHERE id = ?", (other, number))


class Deployment:
    """``serve`` with a file, its workers, and where the table is followed."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.file = folder / "tidemill.toml"
        self.file.write_text(TOML)
        text = FOLLOW.format(redis=redis_url, folder=folder)
        (folder / "follow.py").write_text(text)
        self._redis: Any = redis.Redis.from_url(redis_url, decode_responses=True)
        self.broker = BrokerProcess(folder, env={"TIDEMILL_CONFIG": str(self.file)})
        self._commands = CommandLine(self.broker.bootstrap, folder)
        self.notes: list[str] = []
        self._left: list[psutil.Process] = []

    def start(self) -> None:
        """Start; capture the table first, so that the pipeline finds its topic."""
        self.broker.start()
        self._wait(lambda: self._status("source", "shop").get("state") == "running", "the source")
        self.broker.terminate()
        self.file.write_text(TOML + PIPELINE_TOML)
        self.broker.start()

    def _status(self, *command: str) -> dict[str, Any]:
        done = self._commands.run(command[0], "describe", *command[1:], "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def _worker(self, name: str) -> psutil.Process | None:
        """Return the process of a worker that runs."""
        where = ("--data-dir", str(self.broker.data_dir))
        done = self._commands.run("worker", "list", "--json", *where)
        listed = json.loads(done.stdout) if done.returncode == 0 else []
        for each in listed:
            if each["name"].startswith(name) and each["state"] == "running":
                with contextlib.suppress(psutil.NoSuchProcess):
                    return psutil.Process(each["pid"])
        return None

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        poll_until(condition, WAIT_S, f"{what}\n{self.notes}\n{self.broker.log()}", interval=0.1)

    def kill(self, what: str) -> None:
        """Kill something, and start the broker again if that was killed."""
        self.notes.append(what)
        if what == BROKER:
            self._left += psutil.Process(self.broker.pid).children(recursive=True)
            self.broker.kill()
            self.broker.start()
            return
        worker = self._worker(SOURCES if what == SOURCES else PIPELINE)
        if worker is None:
            return  # it is starting
        family = worker.children(recursive=True)
        self._left += [worker, *family]
        javas = [each for each in family if _is_java(each)]
        for each in javas if what == JVM else [worker]:
            os.kill(each.pid, signal.SIGKILL)

    def wait_for_rows(self) -> None:
        """Wait until the pipeline works."""
        self._wait(lambda: bool(self._in_redis()), "rows in Redis")

    def wait_until_equal(self, rows: Rows) -> None:
        """Wait until all that follows the table has its rows."""
        found: dict[str, object] = {}

        def equal() -> bool:
            found.clear()
            for place in (self._in_redis, self._in_duckdb, self._in_index):
                there = place()
                if there != rows:
                    found[place.__name__] = there
                    return False
            return True

        try:
            self._wait(equal, "what follows the table is equal to it")
        except TimeoutError as error:
            raise AssertionError(f"{found} is not {rows}") from error

    def _in_redis(self) -> Rows:
        hashes = (self._redis.hgetall(key) for key in self._redis.scan_iter("item:1:row:*"))
        return {
            int(each["id"]): (each["name"], int(each["n"]) if "n" in each else None)
            for each in hashes
            if each
        }

    def _in_duckdb(self) -> Rows | None:
        path = self.folder / "item.duckdb"
        try:
            with duckdb.connect(str(path), read_only=True) as db:
                found = db.execute("SELECT id, name, n FROM item").fetchall()
        except duckdb.Error:  # missing, or open in the pipeline: one process at a time
            return None
        return {number: (name, n) for number, name, n in found}

    def _in_index(self) -> Rows | None:
        path = self.folder / "index" / "current"
        if not path.exists():
            return None
        searcher = tantivy.Index.open(str(path)).searcher()
        hits = searcher.search(tantivy.Query.all_query(), 10 * IDS).hits
        documents = (searcher.doc(address).to_dict() for _, address in hits)
        return {
            each["id"][0]: (each["name"][0], each["n"][0] if "n" in each else None)
            for each in documents
            if "id" in each
        }

    def end(self) -> None:
        """Kill all that runs."""
        with contextlib.suppress(psutil.Error, AssertionError):
            self._left += psutil.Process(self.broker.pid).children(recursive=True)
            self.broker.kill()
        for each in self._left:
            kill(each)


def _is_java(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.name() == "java")
    return False


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with contextlib.ExitStack() as stack:
        with skip_if_missing():
            url = stack.enter_context(redis_server(tmp_path / "redis.log"))
        made = Deployment(tmp_path, url)
        stack.callback(made.end)
        yield made


def test_what_follows_a_table_is_equal_to_it_after_kills(
    deployment: Deployment, tmp_path: Path
) -> None:
    seed = chosen_seed(7)
    print(f"CRASH_SEED={seed}")
    dice = random.Random(seed)
    shop = Shop(tmp_path / "shop.db", random.Random(seed + 1))
    try:
        deployment.start()
        shop.start()
        deployment.wait_for_rows()  # otherwise the kills would hit nothing
        victims = [PIPELINE, BROKER]
        for number in range(KILLS):
            threading.Event().wait(dice.random() * (0.5 if KILLS < 10 else 8))
            any_of = [PIPELINE, SOURCES, BROKER, JVM]
            deployment.kill(victims[number] if number < len(victims) else dice.choice(any_of))
            assert shop.failure is None, shop.failure
        rows = shop.stop()
        assert shop.changes > 50
        deployment.wait_until_equal(rows)
    finally:
        shop.stop()
    lines = deployment.broker.log(10_000_000).splitlines()
    assert not [line for line in lines if "Traceback" in line and not line.startswith("[")]
