"""Kill the worker while tables are defined in other ways, and compare topics with tables.

Connections change rows, keys among them, while another one alters tables, works on partitions,
swaps tables by RENAME, drops and creates them. The statements, and the moments of the kills, are
random.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pymysql

from tests.connect.cdc.binlog_servers import Server
from tests.connect.cdc.topics import Topics
from tests.connect.conftest import RunningWorker
from tests.support.effort import IS_NIGHTLY, rounds
from tests.support.processes import poll_until
from tests.support.source_worker import SourceWorker
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter, create_topic
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.errors import FencedError, SetupError, SourceUnavailableError
from tidemill.connect.cdc.topics import SOURCES

IDS = 30
KILLS = rounds("STATEMENT_KILLS", 2, 2000)
KILLS_OF_ROUND = 5
"""After so many kills, topics and tables are compared."""
SEED = int(os.environ.get("STATEMENT_SEED") or (time.time_ns() & 0xFFFFFF if IS_NIGHTLY else 11))
PARTS = (
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), "
    "PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN MAXVALUE)"
)
COLUMNS = "id INT NOT NULL, u INT NOT NULL, v VARCHAR(40) NOT NULL DEFAULT ''"
CREATE = {
    "parted": f"({COLUMNS}, PRIMARY KEY (id)) {PARTS}",
    "part": f"({COLUMNS}, PRIMARY KEY (id))",
    "rekeyed": f"({COLUMNS}, PRIMARY KEY (id), UNIQUE KEY (u))",
    "named": f"({COLUMNS}, PRIMARY KEY (v)) COLLATE utf8mb4_general_ci",
    "swapped": f"({COLUMNS}, PRIMARY KEY (id))",
    "created": f"({COLUMNS}, PRIMARY KEY (id))",
    "altered": f"({COLUMNS}, w SET('a', 'b', 'c') DEFAULT 'a', e ENUM('x', 'y') DEFAULT 'y', "
    "PRIMARY KEY (id))",
}
ALTERED = CREATE["altered"]


def change_of_rows(chance: random.Random) -> str:
    """Return a statement that changes rows."""
    table, key = chance.choice([*CREATE]), chance.randrange(IDS)
    unique, text = chance.randrange(10**6), chance.choice(["a", "A", "b ", "B", "é", "É"])
    return chance.choice(
        [
            f"REPLACE INTO {table} (id, u, v) VALUES ({key}, {unique}, '{text}{key % 5}')",
            f"INSERT INTO {table} (id, u, v) VALUES ({key}, {unique}, '{text}{unique}')",
            f"INSERT INTO {table} (id, u, v) VALUES ({key}, {unique}, '{text}') "
            "ON DUPLICATE KEY UPDATE v = VALUES(v)",
            f"UPDATE {table} SET u = u + 1000000 WHERE id >= {key} LIMIT 5",
            f"UPDATE IGNORE {table} SET v = UPPER(v) WHERE id < {key}",
            f"UPDATE IGNORE {table} SET id = {chance.randrange(IDS)} WHERE id = {key}",
            f"UPDATE {table} SET id = {IDS - 1} - id WHERE id < {IDS}",
            f"DELETE FROM {table} WHERE id = {key}",
        ]
    )


def definition_of_tables(chance: random.Random) -> list[str]:
    """Return statements, one after the other, that change rows without rows events."""
    number = chance.randrange(10**6)
    return chance.choice(_STATEMENTS)(chance, number)


def _alter(chance: random.Random, number: int) -> list[str]:
    labels = ["a", "b", "c", "d"]
    chance.shuffle(labels)
    ends = chance.sample(["x", "y", "z"], 3)
    clause = chance.choice(
        [
            f"ADD COLUMN n{number} INT NOT NULL DEFAULT {number % 7}",
            f"ADD COLUMN n{number} VARCHAR(9) DEFAULT 'd' FIRST",
            f"MODIFY w SET({', '.join(map(repr, labels))}) DEFAULT 'a'",
            f"MODIFY e ENUM({', '.join(map(repr, ends))}) DEFAULT 'y'",
            f"ADD COLUMN g{number} INT AS (id + {number % 9}) STORED",
            f"ADD INDEX i{number} (u)",
            "DROP COLUMN w, ADD COLUMN w SET('c', 'b', 'a') DEFAULT 'c'",
            "CHANGE v v VARCHAR(50) NOT NULL DEFAULT ''",
        ]
    )
    unlogged = chance.random() < 0.2
    return [
        *(["SET SESSION sql_log_bin = 0"] if unlogged else []),
        f"ALTER TABLE altered {clause}",
        "SET SESSION sql_log_bin = 1",
    ]


def _parts(chance: random.Random, number: int) -> list[str]:
    part, low = chance.choice([("p0", 0), ("p1", 10)])
    return chance.choice(
        [
            [f"ALTER TABLE parted TRUNCATE PARTITION {part}"],
            [f"DELETE FROM part WHERE id < {low} OR id >= {low + 10}",
             f"ALTER TABLE parted EXCHANGE PARTITION {part} WITH TABLE part"],
            ["ALTER TABLE parted DROP PARTITION p1",
             "ALTER TABLE parted REORGANIZE PARTITION p2 INTO (PARTITION p1 VALUES LESS THAN (20), "
             "PARTITION p2 VALUES LESS THAN MAXVALUE)"],
            ["ALTER TABLE parted REBUILD PARTITION ALL"],
        ]
    )  # fmt: skip


def _rekey(chance: random.Random, number: int) -> list[str]:
    key = chance.choice(["id", "u", "u, id"])
    return [f"ALTER TABLE rekeyed DROP PRIMARY KEY, ADD PRIMARY KEY ({key})"]


def _swap(chance: random.Random, number: int) -> list[str]:
    return [
        "CREATE TABLE ghost LIKE swapped",
        f"ALTER TABLE ghost ADD COLUMN n{number} INT DEFAULT 1",
        f"INSERT INTO ghost (id, u, v) SELECT id, u, v FROM swapped WHERE id <> {number % IDS}",
        "RENAME TABLE swapped TO gone, ghost TO swapped",
        "DROP TABLE gone",
    ]


def _create(chance: random.Random, number: int) -> list[str]:
    create = f"CREATE TABLE created {CREATE['created']}"
    row = f"INSERT INTO created (id, u) VALUES ({number % IDS}, {number})"
    return chance.choice(
        [
            ["TRUNCATE created"],
            ["TRUNCATE TABLE created", row],
            ["DROP TABLE created", create],
            ["DROP TABLE created", create.replace("TABLE", "TABLE IF NOT EXISTS"), row],
            ["DROP TABLE IF EXISTS created",
             "CREATE TABLE created (PRIMARY KEY (id)) AS SELECT id, u, v FROM rekeyed"],
        ]
    )  # fmt: skip


_STATEMENTS: list[Callable[[random.Random, int], list[str]]] = [
    _alter, _alter, _parts, _parts, _rekey, _swap, _create,
]  # fmt: skip


def _write(
    server: Server,
    shop: str,
    chance: random.Random,
    stop: threading.Event,
    make: Callable[[random.Random], list[str]],
    pause_s: float,
    counts: list[int],
) -> None:
    """Run random statements until ``stop``. Some fail: a key exists, or a column is gone."""
    with server.connect(database=shop, autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION lock_wait_timeout = 5")
        while not stop.wait(chance.random() * pause_s):
            for statement in make(chance):
                try:
                    cursor.execute(statement)
                    counts.append(1)
                except (pymysql.err.MySQLError, pymysql.err.Warning):
                    continue


class _Threads:
    """The worker as threads of this process: a new one fences the one before."""

    def __init__(self, definition: Definition, kafka: Kafka) -> None:
        self._definition, self._kafka = definition, kafka
        self._running: list[RunningWorker] = []

    def start(self) -> None:
        self._running.append(RunningWorker(self._definition, self._kafka))
        self._running[-1].__enter__()

    def kill(self) -> None:
        """Do nothing: the next one takes over in the middle of a transaction."""

    def log(self) -> str:
        return ""

    def check(self) -> None:
        """Start it again if it ended: one before it can have started later than it did."""
        error = self._running[-1].error
        if isinstance(error, (FencedError, SetupError, SourceUnavailableError)):
            self.start()
        elif error is not None:
            raise error

    def stop(self) -> None:
        for each in self._running:
            each.orders.stop = True
        for each in self._running:
            each.wait_for_end()


class _Processes:
    """The worker as processes, killed by SIGKILL."""

    def __init__(self, definition: Definition, kafka: Kafka, folder: Path) -> None:
        create_topic(kafka, SOURCES)
        board = BoardWriter(kafka, SOURCES)
        board.define(definition)
        board.flush()
        worker = SourceWorker(definition.name, kafka.servers, folder / "worker.log")
        self.start, self.kill, self.stop, self.log = (
            worker.start,
            worker.kill,
            worker.kill,
            worker.log,
        )

    def check(self) -> None:
        """Do nothing: a process that ends is started again."""


def assert_topics_follow_statements(
    definition: Definition, kafka: Kafka, server: Server, shop: str, folder: Path
) -> None:
    """Check that the topics equal the tables after kills while tables are defined in other ways."""
    print(f"STATEMENT_SEED={SEED} STATEMENT_KILLS={KILLS}")
    topics = Topics(kafka, server, shop, definition.topic_prefix)
    worker: _Threads | _Processes = (
        _Processes(definition, kafka, folder) if KILLS > KILLS_OF_ROUND else
        _Threads(definition, kafka)
    )  # fmt: skip
    _run_once(server, shop, [f"CREATE TABLE {name} {made}" for name, made in CREATE.items()])
    done = [0, 0, 0]
    worker.start()
    try:
        while done[0] < KILLS:
            kills = min(KILLS_OF_ROUND, KILLS - done[0])
            found = _round(server, shop, worker, random.Random(SEED + done[0]), kills)
            done = [a + b for a, b in zip(done, [kills, *found], strict=True)]
            worker.kill()
            worker.start()  # what is not in the binary log is found at a start
            _compare(topics, worker)
            _run_once(server, shop, ["DROP TABLE altered", f"CREATE TABLE altered {ALTERED}"])
            print("{} kills, {} changes of rows, {} definitions: equal".format(*done))
    finally:
        worker.stop()


def _run_once(server: Server, shop: str, statements: list[str]) -> None:
    with server.connect(database=shop, autocommit=True) as connection:
        for statement in statements:
            connection.cursor().execute(statement)


def _round(
    server: Server, shop: str, worker: _Threads | _Processes, chance: random.Random, kills: int
) -> tuple[int, int]:
    """Kill the worker under load; return how many changes and definitions succeeded."""
    stop = threading.Event()
    rows: list[int] = []
    definitions: list[int] = []

    def one(chance: random.Random) -> list[str]:
        return [change_of_rows(chance)]

    threads = [
        threading.Thread(
            target=_write, args=(server, shop, random.Random(chance.random()), stop, *more)
        )
        for more in [(one, 0.02, rows)] * 2 + [(definition_of_tables, 0.2, definitions)]
    ]
    for each in threads:
        each.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.2, 1.2))  # the moment of a kill is random
            worker.kill()
            worker.start()
    finally:
        stop.set()
        for each in threads:
            each.join()
    return len(rows), len(definitions)


def _compare(topics: Topics, worker: _Threads | _Processes) -> None:
    def are_equal() -> bool:
        worker.check()
        return not topics.differing()

    try:
        poll_until(are_equal, 120, "the topics equal the tables", 0.2)
    except TimeoutError:
        raise AssertionError(
            f"topic and table differ: {topics.differing()}\n{worker.log()}"
        ) from None
