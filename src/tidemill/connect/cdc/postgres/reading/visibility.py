"""Opens snapshots that contain everything that the stream has delivered.

PostgreSQL writes the commit record of a transaction before the transaction becomes visible, and in
between it can wait for a synchronous standby. So the stream can deliver a transaction that a
snapshot taken a moment later does not contain. A snapshot is used only if none of the transactions
that it sees as running was delivered. Must not know: rows, tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidemill.connect.cdc.errors import SourceUnavailableError
from tidemill.connect.cdc.postgres.errors import translating
from tidemill.connect.cdc.postgres.lsn import end_of_records, parse

_XID_BITS = 0xFFFFFFFF
_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.2
_PATIENCE_S = 30.0
_SNAPSHOT = (
    "SELECT {snapshot}::text, pg_current_wal_insert_lsn()::text, "
    "(SELECT coalesce(json_agg(backend_xid::text), '[]') FROM pg_stat_activity"
    " WHERE wait_event = 'SyncRep' AND backend_xid IS NOT NULL)"
)
"""A session that waits for a synchronous standby has written its commit record. An earlier worker
may have delivered it, so it counts as delivered."""


def running(snapshot: str) -> tuple[int, set[int]]:
    """Return the end and the running transactions of a snapshot such as ``10:20:10,14,15``."""
    _, end, listed = snapshot.split(":")
    return int(end) & _XID_BITS, {int(xid) & _XID_BITS for xid in listed.split(",") if xid}


def not_visible(snapshot: str, delivered: set[int]) -> set[int]:
    """Return those of the delivered transactions that a snapshot does not contain."""
    end, listed = running(snapshot)
    # Numbers wrap around after 2**32; of two numbers the later one is less than 2**31 ahead.
    return {xid for xid in delivered if xid in listed or (xid - end) & _XID_BITS < 1 << 31}


@contextmanager
def open_snapshot(
    connection: Any, delivered: set[int], sleep: Callable[[float], None] = time.sleep
) -> Iterator[int]:
    """Begin a read-only transaction that sees all delivered transactions.

    Transactions that every later snapshot sees as finished are removed from ``delivered``.

    Yields:
        The place in the log up to which the snapshot can contain changes.
    """
    pause, deadline = _PAUSE_S, time.monotonic() + _PATIENCE_S
    while True:
        high, hidden = _begin(connection, delivered)
        if not hidden:
            break
        with translating("can't end a transaction"):
            connection.execute("ROLLBACK")
        if time.monotonic() > deadline:
            raise SourceUnavailableError(
                f"transaction {min(hidden)} is committed, but not visible after {_PATIENCE_S:g} s",
                hint="It probably waits for a synchronous standby: see synchronous_standby_names.",
            )
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    try:
        yield high
    finally:
        if not connection.closed:
            with translating("can't end a transaction"):
                connection.execute("ROLLBACK")


def _begin(connection: Any, delivered: set[int]) -> tuple[int, set[int]]:
    new = connection.info.server_version >= 130000
    query = _SNAPSHOT.format(snapshot="pg_current_snapshot()" if new else "txid_current_snapshot()")
    with translating("can't open a snapshot"):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        snapshot, high, waiting = connection.execute(query).fetchone()
    hidden = not_visible(snapshot, delivered)
    delivered.intersection_update(hidden)
    listed = running(snapshot)[1]
    hidden |= {int(xid) for xid in waiting} & listed
    return end_of_records(parse(high)), hidden


def prune(connection: Any, delivered: set[int]) -> None:
    """Remove the transactions that are visible by now."""
    new = connection.info.server_version >= 130000
    function = "pg_current_snapshot()" if new else "txid_current_snapshot()"
    with translating("can't read the running transactions"):
        (snapshot,) = connection.execute(f"SELECT {function}::text").fetchone()
    delivered.intersection_update(not_visible(snapshot, delivered))
