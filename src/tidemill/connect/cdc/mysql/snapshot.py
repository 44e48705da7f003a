"""Transactions of MySQL that see rows as of the binary log, without a lock.

MySQL does not say to which place of its binary log a transaction corresponds. But it keeps an
order: it gives an id to a transaction (``gtid_owned``), writes it to the binary log, makes it
visible, and only then adds the id to ``gtid_executed`` and removes it from ``gtid_owned``. So

- what is in ``gtid_executed`` before a snapshot begins is visible in it;
- what is visible in a snapshot is before the end of the binary log as it is read afterwards;
- if the end of the log is the same before and after, and no id was owned in between, then the
  snapshot sees exactly what the log has.

The first two are enough for a part of a table that is joined with the stream. The third is for
tables that are read as a whole. On a server that never rests it does not come true; then a short
lock helps (``FLUSH TABLES WITH READ LOCK``), which needs the privilege RELOAD.

Must not know the stream of the binary log. Source: MySQL manual, "GTID Life Cycle".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import query
from tidemill.connect.cdc.binlog.reading import read_view
from tidemill.connect.cdc.errors import SourceUnavailableError
from tidemill.connect.cdc.mysql.gtids import GtidSet
from tidemill.connect.cdc.mysql.position import MySqlPosition
from tidemill.connect.cdc.mysql.status import log_status, server_uuid

SNAPSHOT_WAIT_S = 10
"""How long a snapshot may be behind the stream, in seconds. It is behind for the moment between
the write of a transaction to the binary log and its commit in the storage engine."""

REST_S = 5.0
"""How long to wait for a moment without a commit before the tables are locked, in seconds."""


def wait_until_executed(connection: pymysql.Connection[Any], ids: GtidSet, seconds: int) -> bool:
    """Wait until transactions are visible; return whether they are."""
    ((late,),) = query(
        connection, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", str(ids), int(seconds)
    )
    return str(late) == "0"


@contextmanager
def snapshot_after(
    connection: pymysql.Connection[Any], delivered: MySqlPosition | None
) -> Iterator[MySqlPosition]:
    """Open a snapshot that sees at least what the stream has delivered.

    Raises:
        SourceUnavailableError: the tables stay behind the stream, or are on another server.
    """
    server = server_uuid(connection)
    if delivered is not None:
        if server != delivered.server:
            raise SourceUnavailableError(
                f"two connections to one address reached two servers, {delivered.server} and "
                f"{server}; use an address that always leads to the same server"
            )
        if not wait_until_executed(connection, delivered.ids, SNAPSHOT_WAIT_S):
            raise SourceUnavailableError(
                f"a snapshot stays behind the binary log: the stream is at {delivered.gtid!r}"
            )
    with read_view(connection):
        end = log_status(connection)
        yield MySqlPosition(GtidSet.parse(end.executed), server, end.file, end.end)


@contextmanager
def exact_snapshot(connection: pymysql.Connection[Any]) -> Iterator[MySqlPosition]:
    """Open a snapshot that sees exactly what is committed at the position it gives.

    Raises:
        SourceUnavailableError: the server commits all the time, and the user must not lock.
    """
    server = server_uuid(connection)
    deadline = time.monotonic() + REST_S
    while time.monotonic() < deadline:
        before = log_status(connection)
        ((owned,),) = query(connection, "SELECT @@global.gtid_owned")
        if owned:
            continue
        with read_view(connection):
            after = log_status(connection)
            if (before.file, before.end) == (after.file, after.end):
                yield MySqlPosition(GtidSet.parse(after.executed), server)
                return
    _lock(connection)
    with read_view(connection):
        executed = log_status(connection).executed
        query(connection, "UNLOCK TABLES")
        yield MySqlPosition(GtidSet.parse(executed), server)


def _lock(connection: pymysql.Connection[Any]) -> None:
    """Lock all tables against commits. The end of the connection ends the lock too."""
    try:
        query(connection, f"SET SESSION lock_wait_timeout = {SNAPSHOT_WAIT_S}")
        query(connection, "FLUSH TABLES WITH READ LOCK")
    except pymysql.err.OperationalError as error:
        raise SourceUnavailableError(
            f"the server commits so often that no moment between two commits was found within "
            f"{REST_S} s, and the tables can't be locked: {error.args[1]}. Grant RELOAD, or try "
            "again when the server is less busy."
        ) from error
