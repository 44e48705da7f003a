"""Statements that change rows without events: the topics equal the tables after each of them.

The tests of MariaDB and MySQL subclass ``ShapesContract``, with the fixtures of
``tests.connect.cdc.binlog_servers`` and of ``tests.connect.conftest``.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from tests.connect.cdc.binlog_servers import Execute, MakeSource, Server, database_section
from tests.connect.cdc.random_statements import assert_topics_follow_statements
from tests.connect.cdc.topics import Topics
from tests.connect.conftest import RunningWorker
from tests.support.effort import IS_NIGHTLY
from tests.support.logged import logged
from tests.support.mariadb import PASSWORD
from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.binlog.source import BinlogSource
from tidemill.connect.cdc.contract import Batch
from tidemill.connect.cdc.definition import Definition, parse

Statements = Sequence[str]
PLAIN = ("CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(20))",
         "INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (30, 'c')")  # fmt: skip
PARTS = (
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), "
    "PARTITION p1 VALUES LESS THAN MAXVALUE)"
)
PARTED = (f"CREATE TABLE {{t}} (id INT PRIMARY KEY, v VARCHAR(20)) {PARTS}", PLAIN[1])

CHANGING: dict[str, tuple[Statements, Statements]] = {
    "default": (PLAIN, ["ALTER TABLE {t} ADD COLUMN n INT NOT NULL DEFAULT 42"]),
    "default_then_row": (
        PLAIN,
        ["ALTER TABLE {t} ADD COLUMN n INT NOT NULL DEFAULT 42", "INSERT INTO {t} (id) VALUES (3)"],
    ),
    "first_column": (PLAIN, ["ALTER TABLE {t} ADD n INT DEFAULT 1 FIRST, DROP COLUMN v"]),
    "there_and_back": (
        PLAIN,
        ["ALTER TABLE {t} DROP v", "ALTER TABLE {t} ADD v VARCHAR(20) DEFAULT 'new'"],
    ),
    "there_and_back_with_rows": (
        PLAIN,
        [
            "ALTER TABLE {t} ADD w INT DEFAULT 9",
            "UPDATE {t} SET v = 'x' WHERE id = 1",
            "ALTER TABLE {t} DROP w",
        ],
    ),
    "renamed_column": (PLAIN, ["ALTER TABLE {t} CHANGE v u VARCHAR(30)"]),
    "type": (PLAIN, ["ALTER TABLE {t} MODIFY v VARCHAR(1) NOT NULL"]),
    "to_text": (PLAIN, ["ALTER TABLE {t} MODIFY id VARCHAR(9)"]),
    "set": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v SET('a', 'b', 'c'))",
            "INSERT INTO {t} VALUES (1, 'a,b'), (2, 'c')",
        ),
        ["ALTER TABLE {t} MODIFY v SET('c', 'b', 'a')"],
    ),
    "enum": (
        (
            "CREATE TABLE {t} (id ENUM('x', 'y') PRIMARY KEY, v ENUM('a', 'b'))",
            "INSERT INTO {t} VALUES ('x', 'a'), ('y', 'b')",
        ),
        ["ALTER TABLE {t} MODIFY v ENUM('b', 'a'), MODIFY id ENUM('y', 'z', 'x')"],
    ),
    "generated": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v INT AS (id + 1) STORED, "
            "w INT AS (id) VIRTUAL)",
            "INSERT INTO {t} (id) VALUES (1), (2)",
        ),
        ["ALTER TABLE {t} MODIFY v INT AS (id + 2) STORED", "ALTER TABLE {t} DROP COLUMN w"],
    ),
    "character_set": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9)) CHARACTER SET utf8mb4",
            "INSERT INTO {t} VALUES (1, 'é日')",
        ),
        ["ALTER TABLE {t} CONVERT TO CHARACTER SET latin1"],
    ),
    "key": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(20) NOT NULL)",
            "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')",
        ),
        ["ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (v)"],
    ),
    "longer_key": (
        PLAIN,
        ["ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)", "DELETE FROM {t} WHERE id=1"],
    ),
    "renamed_key": (PLAIN, ["ALTER TABLE {t} RENAME COLUMN id TO number"]),
    "dropped_index_of_the_key": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(20) NOT NULL)",
            "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')",
        ),
        ["DROP INDEX `PRIMARY` ON {t}", "ALTER TABLE {t} ADD PRIMARY KEY (v)"],
    ),
    "truncate": (PLAIN, ["TRUNCATE {t}", "INSERT INTO {t} VALUES (2, 'new')"]),
    "drop_partition": (PARTED, ["ALTER TABLE {t} DROP PARTITION p0"]),
    "truncate_partition": (PARTED, ["ALTER TABLE {t} TRUNCATE PARTITION p1"]),
    "exchange": (
        (*PARTED, "CREATE TABLE {t}x (id INT PRIMARY KEY, v VARCHAR(20))",
         "INSERT INTO {t}x VALUES (4, 'x'), (5, 'y')"),
        ["ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {t}x"],
    ),
    "reorganize": (
        PARTED,
        [
            "ALTER TABLE {t} REORGANIZE PARTITION p0 INTO "
            "(PARTITION a VALUES LESS THAN (2), PARTITION b VALUES LESS THAN (10))",
            "ALTER TABLE {t} DROP PARTITION a",
        ],
    ),
    "swapped": (
        (*PLAIN, "CREATE TABLE {t}_gho LIKE {t}", "INSERT INTO {t}_gho VALUES (1, 'a'), (9, 'g')"),
        ["RENAME TABLE {t} TO {t}_del, {t}_gho TO {t}", "DROP TABLE {t}_del"],
    ),
    "swapped_by_alter": (
        (*PLAIN, "CREATE TABLE {t}_new LIKE {t}", "INSERT INTO {t}_new VALUES (7, 'n')"),
        ["DROP TABLE {t}", "ALTER TABLE {t}_new RENAME TO {t}"],
    ),
    "renamed": (PLAIN, ["RENAME TABLE {t} TO {t}2"]),
    "created_again": (PLAIN, ["DROP TABLE {t}", *PLAIN[:1], "INSERT INTO {t} VALUES (2, 'again')"]),
    "created_again_empty": (PLAIN, ["DROP TABLE IF EXISTS {t}", PLAIN[0]]),
    "created_if_missing": (
        PLAIN,
        ["DROP TABLE {t}", "CREATE TABLE IF NOT EXISTS {t} (id INT PRIMARY KEY)"],
    ),
    "created_as_select": (
        (*PLAIN, "CREATE TABLE {t}x (id INT PRIMARY KEY, v VARCHAR(20))"),
        [
            "INSERT INTO {t}x VALUES (1, 'z')",
            "DROP TABLE {t}",
            "CREATE TABLE {t} (PRIMARY KEY (id)) AS SELECT * FROM {t}x",
        ],
    ),
    "commented": (
        PLAIN,
        ["/* x */ -- y\n ALTER /*!50000 TABLE */ {t} # z\n ADD /* ` */ n INT DEFAULT 3"],
    ),
    "myisam": (
        ("CREATE TABLE {t} (id INT PRIMARY KEY) ENGINE = MyISAM", "INSERT INTO {t} VALUES (1)"),
        ["REPAIR TABLE {t}", "ALTER TABLE {t} ADD n INT DEFAULT 3"],
    ),
}  # fmt: skip
"""What is there, and what happens to it. ``{t}`` is the name of the table."""

KEEPING: dict[str, tuple[Statements, Statements]] = {
    "index": (PLAIN, ["ALTER TABLE {t} ADD INDEX i (v)", "CREATE INDEX j ON {t} (v)"]),
    "options": (PLAIN, ["ALTER TABLE {t} COMMENT 'x', AUTO_INCREMENT 9", "ALTER TABLE {t} FORCE"]),
    "later_default": (PLAIN, ["ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 'd'"]),
    "add_partition": (
        (PARTED[0].replace("MAXVALUE", "(50)"), PARTED[1]),
        ["ALTER TABLE {t} ADD PARTITION (PARTITION p2 VALUES LESS THAN (90))"],
    ),
    "split_partition": (
        PARTED,
        [
            "ALTER TABLE {t} REORGANIZE PARTITION p1 INTO "
            "(PARTITION a VALUES LESS THAN (20), PARTITION b VALUES LESS THAN MAXVALUE)",
            "ALTER TABLE {t} REBUILD PARTITION ALL",
            "ALTER TABLE {t} REMOVE PARTITIONING",
            f"ALTER TABLE {{t}} {PARTS}",
        ],
    ),
    "hash_partitions": (
        ("CREATE TABLE {t} (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 5",
         "INSERT INTO {t} VALUES (1), (2), (3), (4), (5)"),
        ["ALTER TABLE {t} COALESCE PARTITION 3"],
    ),
    "if_missing": (PLAIN, ["CREATE TABLE IF NOT EXISTS {t} (id INT PRIMARY KEY)"]),
}  # fmt: skip
"""Statements after which nothing has to be read again."""

STOPPED = ("default", "key", "drop_partition", "swapped", "index")
"""Those that are also tried while no worker runs. A nightly run tries all."""


def _next_with_resync(source: BinlogSource) -> Batch:
    """Return the next batch that asks for a read of a table."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        batch = source.poll(1)
        if batch is not None and batch.resync:
            return batch
    raise AssertionError("no batch asks for a read")


def copy_as_owner(source: Path, target: Path) -> None:
    """Copy a file of the server, with its owner."""
    shutil.copy(source, target)
    owner = source.stat()
    os.chown(target, owner.st_uid, owner.st_gid)


class ShapesContract:
    """Inherit it, and set what differs.

    Attributes:
        KIND: the kind of the source.
        HALF: which half of the cases a run that is not nightly tries: 0 or 1.
    """

    KIND: ClassVar[str]
    HALF: ClassVar[int]

    @pytest.fixture
    def definition(
        self, server: Server, shop: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> Definition:
        monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
        section = database_section(server, password="${env:SHOP_PASSWORD}")
        return parse(
            {
                "name": name,
                "kind": self.KIND,
                "tables": [f"{shop}.*"],
                "chunk_rows": 2,
                "database": section,
            }
        )

    @pytest.mark.parametrize("is_running", [True, False])
    def test_topics_equal_the_tables_after_statements_without_rows_events(
        self,
        definition: Definition,
        kafka: Kafka,
        server: Server,
        shop: str,
        execute: Execute,
        is_running: bool,
    ) -> None:
        names = [*CHANGING, *KEEPING]
        if not IS_NIGHTLY:  # half of them on each server
            names = names[self.HALF :: 2] if is_running else [*STOPPED]
        cases = {f"t_{t}": (CHANGING | KEEPING)[t] for t in names}
        keeping = [t for t in cases if t.removeprefix("t_") in KEEPING]
        execute("SET SESSION sql_mode = ''")
        for t, (create, _) in cases.items():
            execute(*(each.format(t=t) for each in create))
        topics = Topics(kafka, server, shop, definition.topic_prefix)
        with RunningWorker(definition, kafka) as worker:
            worker.wait_for_snapshots()
            topics.wait_until_equal(worker)
            kept = topics.counts(keeping)
            if is_running:
                for t, (_, change) in cases.items():
                    execute(*(each.format(t=t) for each in change))
                topics.wait_until_equal(worker)
        if not is_running:
            for t, (_, change) in cases.items():
                execute(*(each.format(t=t) for each in change))
            with RunningWorker(definition, kafka) as worker:
                topics.wait_until_equal(worker)
                worker.wait_for_snapshots()
        assert topics.counts(keeping) == kept

    def test_an_altered_table_is_read_again_before_any_row_of_it_comes_and_the_log_says_why(
        self, definition: Definition, kafka: Kafka, server: Server, shop: str, execute: Execute
    ) -> None:
        execute(*(each.format(t="t") for each in PLAIN))
        topics = Topics(kafka, server, shop, definition.topic_prefix)
        with logged() as events, RunningWorker(definition, kafka) as worker:
            worker.wait_for_snapshots()
            execute("ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT 42")
            topics.wait_until_equal(worker)
            worker.wait_for_snapshots()
        assert topics.rows("t")['{"id": 30}'] == {"id": 30, "v": "c", "n": 42}
        requested = [each for each in events if each["event"] == "snapshot.requested"]
        assert [(each["table"], each["why"]) for each in requested] == [
            (f"{shop}.t", "ALTER TABLE ADD COLUMN changed it")
        ]
        done = [each for each in events if each["event"] == "snapshot.done"]
        assert [(each["rows"], each["deleted_keys"]) for each in done] == [(3, 0), (3, 0)]

    @pytest.mark.parametrize("is_running", [True, False])
    def test_an_alter_that_is_not_in_the_binary_log_is_found_by_the_catalog(
        self,
        definition: Definition,
        kafka: Kafka,
        server: Server,
        shop: str,
        execute: Execute,
        is_running: bool,
    ) -> None:
        execute(*(each.format(t="t") for each in PLAIN))
        topics = Topics(kafka, server, shop, definition.topic_prefix)
        unlogged = [
            "SET SESSION sql_log_bin = 0",
            "ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT 42",
            "SET SESSION sql_log_bin = 1",
        ]
        with RunningWorker(definition, kafka) as worker:
            worker.wait_for_snapshots()
            if is_running:
                execute(*unlogged, "INSERT INTO t (id) VALUES (4)")
                topics.wait_until_equal(worker)
                worker.wait_for_snapshots()
        if not is_running:
            execute(*unlogged)
            with RunningWorker(definition, kafka) as worker:
                topics.wait_until_equal(worker)
        assert topics.rows("t")['{"id": 1}'] == {"id": 1, "v": "a", "n": 42}

    def test_a_batch_with_an_alter_asks_for_a_read_and_notes_the_shape(
        self, make_source: MakeSource, shop: str, execute: Execute
    ) -> None:
        execute(*(each.format(t="t") for each in PLAIN))
        source: BinlogSource = make_source()
        source.start(None)
        first = source.poll(0.5)
        assert first is not None
        assert first.resync == []
        (note,) = first.notes
        execute("ALTER TABLE t DROP COLUMN v")
        batch = _next_with_resync(source)
        assert batch.resync == [f"{shop}.t"]
        assert list(batch.notes) == [note]
        assert json.loads(str(batch.notes[note]))["columns"].keys() == {"id"}

    def test_a_statement_in_another_character_set_names_its_table(
        self, make_source: MakeSource, server: Server, shop: str, execute: Execute
    ) -> None:
        execute("CREATE TABLE `größe` (id INT PRIMARY KEY)", "INSERT INTO `größe` VALUES (1)")
        source: BinlogSource = make_source()
        source.start(None)
        with server.connect(autocommit=True, database=shop) as connection:
            connection.query("SET NAMES latin1")
            connection.query("ALTER TABLE größe ADD COLUMN n INT DEFAULT 5".encode("latin1"))
        assert _next_with_resync(source).resync == [f"{shop}.größe"]

    def test_a_table_without_its_tablespace_stops_no_other_table_and_is_read_after_the_import(
        self, definition: Definition, kafka: Kafka, server: Server, shop: str, execute: Execute
    ) -> None:
        for t in ("t", "other", "donor"):
            execute(*(each.format(t=t) for each in PLAIN))
        execute("INSERT INTO donor VALUES (50, 'from another table')")
        topics = Topics(kafka, server, shop, definition.topic_prefix)
        with server.connect(database=shop, autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT @@datadir")
            files = Path(cursor.fetchone()[0]) / shop
            with logged() as events, RunningWorker(definition, kafka) as worker:
                worker.wait_for_snapshots()
                execute("ALTER TABLE t DISCARD TABLESPACE")
                worker.wait(
                    lambda: "snapshot.skipped" in [each["event"] for each in events],
                    "the table is left out",
                )
                execute("INSERT INTO other VALUES (7, 'x')")
                worker.wait(lambda: '{"id": 7}' in topics.rows("other"), "the row is captured")
                cursor.execute("FLUSH TABLES donor FOR EXPORT")
                for suffix in ("ibd", "cfg"):
                    copy_as_owner(files / f"donor.{suffix}", files / f"t.{suffix}")
                cursor.execute("UNLOCK TABLES")
                execute("ALTER TABLE t IMPORT TABLESPACE")
                topics.wait_until_equal(worker)
        assert topics.rows("t")['{"id": 50}'] == {"id": 50, "v": "from another table"}

    def test_rows_of_load_data_and_of_a_table_that_a_select_fills_are_captured(
        self, definition: Definition, kafka: Kafka, server: Server, shop: str, tmp_path: Path
    ) -> None:
        (tmp_path / "rows").write_text("1\ta\n2\tb\n")
        topics = Topics(kafka, server, shop, definition.topic_prefix)
        with server.connect(database=shop, autocommit=True, local_infile=True) as connection:
            cursor = connection.cursor()
            cursor.execute("SET GLOBAL local_infile = 1")
            cursor.execute(PLAIN[0].format(t="t"))
            with RunningWorker(definition, kafka) as worker:
                worker.wait_for_snapshots()
                cursor.execute(f"LOAD DATA LOCAL INFILE '{tmp_path}/rows' INTO TABLE t")
                cursor.execute("CREATE TABLE u (PRIMARY KEY (id)) AS SELECT * FROM t")
                topics.wait_until_equal(worker)
        assert topics.rows("u").keys() == {'{"id": 1}', '{"id": 2}'}

    @pytest.mark.crash
    def test_topics_equal_the_tables_after_kills_amid_random_statements(
        self, definition: Definition, kafka: Kafka, server: Server, shop: str, tmp_path: Path
    ) -> None:
        assert_topics_follow_statements(definition, kafka, server, shop, tmp_path)
