"""A failover slot survives the loss of the server. PostgreSQL 17 and newer have such slots.

Debian 12 has PostgreSQL 15, so this runs where POSTGRES_BIN names the binaries of a newer one.
"""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.reading import Reading
from tests.support.postgres import LOGICAL, binaries, dsn_of, make_data, start
from tests.support.processes import as_user, own_folder, poll_until, skip_if_missing
from tidemill.connect.cdc.errors import PositionLostError

SLOT = "tidemill_shop"


class Server:
    """One server of a pair, which can be started, stopped and killed."""

    def __init__(self, folder: Path, log: Path, **settings: str) -> None:
        self.folder, self._log, self.settings = folder, log, settings
        self.dsn = dsn_of(folder, settings)
        folder.mkdir()
        self._as_user = as_user("postgres", folder)

    def copy_of(self, other: Server) -> None:
        """Take the files of a server that does not run, and become its standby."""
        data = self.folder / "data"
        command = [*self._as_user, "cp", "-r", str(other.folder / "data"), str(data)]
        subprocess.run(command, check=True, cwd=self.folder)
        subprocess.run([*self._as_user, "touch", str(data / "standby.signal")], check=True)

    def start(self) -> None:
        self.process = start(self.folder, self._log, {**LOGICAL, **self.settings})

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(how)
        self.process.wait(60)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A server and its standby, with a table."""
    with skip_if_missing():
        found = subprocess.run(
            [binaries() / "postgres", "--version"], capture_output=True, text=True, check=True
        )
    version = re.search(r"\d+", found.stdout)
    if version is None or int(version[0]) < 17:
        pytest.skip("POSTGRES_BIN does not name the binaries of PostgreSQL 17 or newer")
    with own_folder("pg") as folder:
        folder.chmod(0o755)
        first = Server(folder / "a", tmp_path / "first.log")
        second = Server(
            folder / "b",
            tmp_path / "second.log",
            primary_conninfo=first.dsn,
            primary_slot_name="standby",
            hot_standby_feedback="on",
            sync_replication_slots="on",
        )
        try:
            make_data(first.folder)
            first.start()
            first.run("CREATE TABLE t (id int PRIMARY KEY)")
            first.run("SELECT pg_create_physical_replication_slot('standby', true)")
            first.stop()
            second.copy_of(first)
            first.start()
            second.start()
            yield first, second
        finally:
            for each in (first, second):
                if hasattr(each, "process"):
                    each.process.kill()


def replayed(first: Server, second: Server) -> bool:
    ((lsn,),) = first.run("SELECT pg_current_wal_lsn()")
    return bool(second.run(f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'")[0][0])


def ids(reading: Reading, count: int) -> list[int]:
    return [each.after["id"] for each in reading.changes(count) if each.after]


def promoted(second: Server, reading: Reading) -> Reading:
    """Promote the standby, and return a reading of it with the same slot."""
    second.run("SELECT pg_promote()")
    poll_until(lambda: second.run("SELECT pg_is_in_recovery()") == [(False,)], 60, "promotion")
    reading.source.close()
    return Reading(second.dsn, name="shop", failover=True)


@pytest.mark.slow
@pytest.mark.separate
def test_a_source_continues_on_the_standby(pair: tuple[Server, Server]) -> None:
    first, second = pair
    reading = Reading(first.dsn, name="shop", failover=True)
    reading.start()
    first.run("INSERT INTO t VALUES (1), (2)")
    assert ids(reading, 2) == [1, 2]
    reading.confirm()
    synced = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND synced"
    synced += " AND NOT temporary AND failover"

    numbers = itertools.count(10)

    def is_synced() -> bool:
        # The standby can take over a slot that has moved past a note of running transactions.
        number = next(numbers)
        first.run("SELECT pg_log_standby_snapshot()")
        first.run(f"INSERT INTO t VALUES ({number})")
        assert ids(reading, 1) == [number]
        reading.confirm()
        reading.source.poll(0.1)
        return bool(second.run(synced))

    poll_until(is_synced, 120, "the standby has the slot", 0.3)
    first.run("INSERT INTO t VALUES (3), (4)")
    poll_until(lambda: replayed(first, second), 60, "the standby has the rows")
    first.stop(signal.SIGQUIT)
    after = promoted(second, reading)
    after.start(reading.position)
    second.run("INSERT INTO t VALUES (5)")
    assert ids(after, 3) == [3, 4, 5]
    after.source.close()


@pytest.mark.slow
@pytest.mark.separate
def test_a_standby_that_lacks_what_was_captured_is_noticed(pair: tuple[Server, Server]) -> None:
    first, second = pair
    reading = Reading(first.dsn, name="shop", failover=True)
    reading.start()
    poll_until(lambda: replayed(first, second), 60, "the standby is up to date")
    second.run("SELECT pg_wal_replay_pause()")
    second.stop()
    second.settings = {}
    first.run("INSERT INTO t VALUES (1), (2)")
    assert ids(reading, 2) == [1, 2]
    reading.confirm()
    first.stop(signal.SIGQUIT)
    second.start()
    after = promoted(second, reading)
    with pytest.raises(PositionLostError, match=r"lost changes in a failover|does not exist"):
        after.start(reading.position)
    after.source.close()
