"""Transactions of MariaDB that see the rows of a position of the binary log, without a lock.

MariaDB says for a transaction WITH CONSISTENT SNAPSHOT which position of the binary log it
corresponds to. So the rows are exactly those of that position, for tables of InnoDB.

Must not know the stream of the binary log. Source: MariaDB documentation, "Enhancements for START
TRANSACTION WITH CONSISTENT SNAPSHOT".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from tidemill.connect.cdc.binlog.catalog import query
from tidemill.connect.cdc.binlog.reading import read_view
from tidemill.connect.cdc.errors import SetupError, SourceUnavailableError
from tidemill.connect.cdc.mariadb.position import GtidPosition, parse_gtid

SNAPSHOT_WAIT_S = 10
"""How long a snapshot may be behind the stream, in seconds. It is behind for the moment between
the write of a transaction to the binary log and its commit in the storage engine."""


@contextmanager
def consistent_snapshot(connection: pymysql.Connection[Any]) -> Iterator[GtidPosition]:
    """Open a snapshot, and return the position that it corresponds to.

    Raises:
        SetupError: the server has no binary log.
    """
    with read_view(connection):
        status = dict(query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
        file, position = status.get("Binlog_snapshot_file"), status.get("Binlog_snapshot_position")
        if not file:
            raise SetupError(
                "the server has no binary log",
                hint="Set log_bin in the server's configuration, and start the server again.",
            )
        ((gtid,),) = query(connection, "SELECT BINLOG_GTID_POS(%s, %s)", file, int(position or 0))
        yield GtidPosition(parse_gtid(gtid or ""))


@contextmanager
def snapshot_after(
    connection: pymysql.Connection[Any], delivered: GtidPosition | None
) -> Iterator[GtidPosition]:
    """Open a snapshot that sees at least what the stream has delivered.

    Raises:
        SourceUnavailableError: the tables stay behind the stream.
    """
    deadline = time.monotonic() + SNAPSHOT_WAIT_S
    while True:
        with consistent_snapshot(connection) as at:
            if delivered is None or at.reached(delivered):
                yield at
                return
            if time.monotonic() > deadline:
                raise SourceUnavailableError(
                    f"a snapshot stays behind the binary log: it is at {at.gtid!r}, the stream at "
                    f"{delivered.gtid!r}"
                )
