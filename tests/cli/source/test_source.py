"""``tidemill source``: with the worker that the broker runs, on SQLite."""

from __future__ import annotations

import os
import signal
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tests.support.topics import write

pytestmark = pytest.mark.slow

TOML = """
name = "{name}"
kind = "sqlite"
managed = {managed}
heartbeat_s = 0.5

[database]
path = "{name}.db"
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., tuple[Path, sqlite3.Connection]]]:
    """Make a database with two orders, and the definition of a source for it."""
    opened: list[sqlite3.Connection] = []

    def made(name: str, *, managed: str = "true") -> tuple[Path, sqlite3.Connection]:
        db = sqlite3.connect(tmp_path / f"{name}.db", isolation_level=None)
        opened.append(db)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        db.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
        file = tmp_path / f"{name}.toml"
        file.write_text(TOML.format(name=name, managed=managed))
        return file, db

    yield made
    for db in opened:
        db.close()


def wait_for_state(tidemill: CommandLine, name: str, state: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def is_so() -> bool:
        found.update(tidemill.json("source", "describe", name))
        return found["state"] == state and not found.get("snapshots")

    poll_until(is_so, 60, f"source {name} is {state}", interval=0.2)
    return found


def values(tidemill: CommandLine, topic: str) -> list[Any]:
    found = tidemill.records(topic, "--from", "beginning", "--until-end")
    return [each["value"] for each in found]


def test_a_source_lives_in_the_brokers_worker(
    tidemill: CommandLine, broker: BrokerProcess, make: Callable[..., Any]
) -> None:
    file, db = make("shop")
    assert "main.orders" in tidemill.ok("source", "check", str(file))
    assert tidemill.ok("source", "create", str(file)) == "created source shop\n"
    assert tidemill.run("source", "create", str(file)).returncode == 4
    found = wait_for_state(tidemill, "shop", "running")
    assert found["tables"] == {"main.orders": "shop.main.orders"}
    assert [each["name"] for each in tidemill.json("source", "list")] == ["shop"]

    tidemill.ok("source", "pause", "shop")
    wait_for_state(tidemill, "shop", "paused")
    db.execute("UPDATE orders SET note = 'c' WHERE id = 2")
    assert len(values(tidemill, "shop.main.orders")) == 2
    tidemill.ok("source", "resume", "shop")
    poll_until(lambda: len(values(tidemill, "shop.main.orders")) == 3, 60, "the update", 0.2)

    said = tidemill.ok("source", "snapshot", "shop", "orders")
    assert "ordered a snapshot of main.orders" in said
    poll_until(lambda: len(values(tidemill, "shop.main.orders")) == 5, 60, "the rows", 0.2)
    refused = tidemill.run("source", "snapshot", "shop", "main.nothing")
    assert refused.returncode == 3
    assert "It captures: main.orders" in refused.stderr

    # The worker is killed: the broker starts it again, and nothing is repeated.
    os.kill(
        int(wait_for_state(tidemill, "shop", "running")["worker"].split(":")[1]), signal.SIGKILL
    )
    db.execute("DELETE FROM orders WHERE id = 1")
    poll_until(lambda: len(values(tidemill, "shop.main.orders")) == 7, 60, "the delete", 0.2)
    assert broker.process.exit_code is None

    wait_for_state(tidemill, "shop", "running")  # the new worker's first status has no tables yet
    assert "would delete topic" in tidemill.ok("source", "delete", "shop", "--topics", "--dry-run")
    assert "deleted source shop" in tidemill.ok("source", "delete", "shop", "--topics", "--yes")
    left = db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%tidemill%'").fetchall()
    assert left == []
    assert tidemill.run("source", "describe", "shop").returncode == 3


def test_restart_gets_past_a_row_that_can_not_be_captured(
    tidemill: CommandLine, make: Callable[..., Any]
) -> None:
    file, db = make("wide")
    tidemill.ok("source", "create", str(file))
    wait_for_state(tidemill, "wide", "running")
    refused = tidemill.run("source", "restart", "wide", "--dead-letter")
    assert refused.returncode == 2
    assert "source wide has not stopped at a row" in refused.stderr

    db.execute("INSERT INTO orders VALUES (3, ?), (4, 'd')", ("x" * (17 << 20),))
    found = wait_for_state(tidemill, "wide", "failed")
    assert found["bad_row"]["table"] == "main.orders"
    assert found["bad_row"]["key"] == '{"id":3}'
    assert list(found["bad_row"]["position"]) == ["change_id"]
    assert 'its place {"change_id": ' in found["error"]
    assert "`tidemill source restart wide --dead-letter`" in found["hint"]

    tidemill.ok("source", "restart", "wide", "--dead-letter")
    # The two rows of the snapshot, the delete of key 3 with its tombstone, and row 4.
    poll_until(lambda: len(values(tidemill, "wide.main.orders")) == 5, 60, "row 4", 0.2)
    assert len(values(tidemill, "wide.dlq")) == 1

    def is_past() -> bool:  # a status is published from time to time
        found = tidemill.json("source", "describe", "wide")
        return (found["state"], found["bad_row"], found["dead_letters"]) == ("running", None, 1)

    poll_until(is_past, 60, "the status is that after the letter", 0.2)
    assert "dead letters" in tidemill.ok("source", "describe", "wide")
    tidemill.ok("source", "delete", "wide", "--topics", "--yes")
    assert "wide.dlq" not in {each["topic"] for each in tidemill.json("topic", "list")}


def test_a_source_that_is_not_managed_runs_by_hand_and_a_second_worker_fences_it(
    tidemill: CommandLine, make: Callable[..., Any]
) -> None:
    file, _ = make("manual", managed="false")
    tidemill.ok("source", "create", str(file))
    first = tidemill.start("source", "run", "manual")
    try:
        wait_for_state(tidemill, "manual", "running")
        second = tidemill.start("source", "run", "manual")
        try:
            _, errors = first.communicate(timeout=300)
            assert first.returncode == 4
            assert b"another worker of source manual has started" in errors
            assert second.poll() is None
        finally:
            second.terminate()
            second.communicate(timeout=300)
        assert second.returncode == 0
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        ('name = "x"\nkind = "nothing"', "unknown kind of source 'nothing'"),
        ('name = "x"\nkind = "sqlite"\ntabels = ["a"]', "unknown key tabels"),
        ('name = "a/b"\nkind = "sqlite"', "invalid name"),
        (
            'name = "x"\nkind = "postgres"\n[database]\nurl = "postgresql://u:hunter2@h/d"',
            "contains a secret as plain text",
        ),
        ('name = "x"\nkind = "sqlite"\n[database]\npassword = "hunter2"', "database.password"),
        ("name = ", "is not valid TOML"),
    ],
)
def test_an_invalid_definition_is_refused(
    tidemill: CommandLine, tmp_path: Path, toml: str, text: str
) -> None:
    file = tmp_path / "source.toml"
    file.write_text(toml)
    done = tidemill.run("source", "create", str(file))
    assert done.returncode == 2
    assert text in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_a_definition_that_can_not_be_understood_can_be_deleted(
    broker: BrokerProcess, tidemill: CommandLine
) -> None:
    name = f"deep-{uuid.uuid4().hex[:8]}"
    write(broker.bootstrap, "tidemill.sources", (f"{name}/definition", b"[" * 100_000))
    done = tidemill.run("source", "delete", name, "--force", "--topics", "--yes")
    assert done.returncode == 0, done.stderr
    assert name not in {each["name"] for each in tidemill.json("source", "list")}
