"""The rows of the table of recovery about Kafka and SQLite (``docs/operations.md``)."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.connect.cdc.recovery import Recovery, assert_rows_are_tested, rows_of
from tests.connect.cdc.test_bad_rows import set_config
from tests.connect.conftest import sqlite_definition
from tidemill.confluent.clients import Kafka
from tidemill.connect.base import producer


class Case(Recovery):
    """A source of a file."""

    path: Path

    @property
    def changes(self) -> str:
        return f"_tidemill_{self.definition.name}_changes"

    def execute(self, statement: str) -> None:
        db = sqlite3.connect(self.path, isolation_level=None)
        db.execute(statement)
        db.close()

    def rows(self) -> dict[int, str]:
        db = sqlite3.connect(self.path)
        found = dict(db.execute("SELECT id, v FROM a").fetchall())
        db.close()
        return found


def restored_from_a_backup(case: Case) -> None:
    case.captured()
    shutil.copy(case.path, case.path.with_suffix(".backup"))
    with case.start() as running:
        case.change()
        running.wait(case.is_equal, "the changes")
    for suffix in ("-wal", "-shm"):
        Path(f"{case.path}{suffix}").unlink(missing_ok=True)
    shutil.copy(case.path.with_suffix(".backup"), case.path)
    case.fails()
    case.recovers()


def replaced_by_another(case: Case) -> None:
    case.captured()
    case.path.unlink()
    for suffix in ("-wal", "-shm"):
        Path(f"{case.path}{suffix}").unlink(missing_ok=True)
    case.run("CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(100))")
    case.run("INSERT INTO a VALUES (3, 'three'), (5, 'five')")
    case.fails()
    case.recovers()


def removed(case: Case) -> None:
    case.captured()
    case.path.rename(case.path.with_suffix(".moved"))
    case.fails()
    case.path.with_suffix(".moved").rename(case.path)
    case.change()
    case.recovers()


def triggers_dropped(case: Case) -> None:
    case.captured()
    for kind in ("ai", "au", "ad"):
        case.run(f"DROP TRIGGER IF EXISTS _tidemill_{case.definition.name}_{kind}_a")
    case.change()
    case.recovers()


def change_log_dropped(case: Case) -> None:
    case.captured()
    for kind in ("ai", "au", "ad", "bi", "bu"):
        case.run(f"DROP TRIGGER IF EXISTS _tidemill_{case.definition.name}_{kind}_a")
    case.run(f"DROP TABLE {case.changes}")
    case.change()
    case.fails()
    case.recovers()


def read_only(case: Case) -> None:
    case.captured()
    case.change()
    access = os.access

    def refuse(path: object, mode: int) -> bool:
        return False if mode == os.W_OK and path == case.path else access(str(path), mode)

    with pytest.MonkeyPatch.context() as patch:  # root can write everywhere
        patch.setattr(os, "access", refuse)
        case.fails()
        case.finds()
    case.recovers("SELECT 1")


def topic_deleted(case: Case) -> None:
    case.captured()
    case.kafka.delete_topics("tests", [case.topic])
    case.change()
    case.recovers()


def topic_deleted_while_running(case: Case) -> None:
    case.captured()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(producer._SETTINGS, "topic.metadata.propagation.max.ms", "500")
        with case.start() as running:
            running.wait_for_snapshots()
            case.kafka.delete_topics("tests", [case.topic])
            case.change()
            case.fails(running)
    case.recovers()


def state_deleted(case: Case) -> None:
    case.captured()
    case.kafka.delete_topics("tests", [f"tidemill.source.{case.definition.name}"])
    case.change()
    case.recovers()


def topic_too_small(case: Case) -> None:
    case.captured()
    set_config(case.kafka, case.topic, "max.message.bytes", "10000")
    noise = "".join(chr(0x4E00 + 7919 * each % 20000) for each in range(9000))
    case.run(f"INSERT INTO a VALUES (5, '{noise}')")
    error = case.fails()
    running = case.start()
    running.orders.accepted = error.row.id  # type: ignore[attr-defined]
    with running:
        case.run("DELETE FROM a WHERE id = 5")
        case.run("INSERT INTO a VALUES (6, 'six')")
        running.wait(case.is_equal, "the topic follows")


KAFKA = {
    "The topic of a table was deleted while no worker ran": topic_deleted,
    "The topic of a table is deleted while a worker runs": topic_deleted_while_running,
    "The topic with the state of the source was deleted": state_deleted,
    "`max.message.bytes` of a topic is too small for a row": topic_too_small,
}
SQLITE = {
    "The file was replaced by an older one, for example from a backup": restored_from_a_backup,
    "The file was replaced by another database": replaced_by_another,
    "The file is not there": removed,
    "The triggers were dropped": triggers_dropped,
    "The table of changes was dropped": change_log_dropped,
    "The worker can't write to the file": read_only,
}


@pytest.mark.parametrize(
    ("section", "state", "test"),
    [("Kafka", *each) for each in KAFKA.items()] + [("SQLite", *each) for each in SQLITE.items()],
)
def test_recovery(
    kafka: Kafka,
    name: str,
    tmp_path: Path,
    section: str,
    state: str,
    test: Callable[[Case], None],
) -> None:
    row = rows_of(section)[state]
    definition = sqlite_definition(name, tmp_path)
    case = Case(kafka, definition, f"{name}.main.a", lambda _: None, dict, row)
    case.path = tmp_path / "shop.db"
    case.run, case.select = case.execute, case.rows
    test(case)


def test_each_row_is_tested() -> None:
    assert_rows_are_tested("Kafka", KAFKA)
    assert_rows_are_tested("SQLite", SQLITE)
