"""The dialect of MariaDB: global transaction ids by domain, and a snapshot that knows its position.

Must not know: events, or Kafka. Source: MariaDB documentation, "Global Transaction ID", "Replica
registration" and "Enhancements for START TRANSACTION WITH CONSISTENT SNAPSHOT".
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql
from pymysql.constants.COMMAND import COM_BINLOG_DUMP

from tidemill.connect.cdc.binlog.catalog import query
from tidemill.connect.cdc.binlog.decoding.table_map import MARIADB
from tidemill.connect.cdc.binlog.reading import read_view
from tidemill.connect.cdc.contract import Position
from tidemill.connect.cdc.errors import (
    PermanentCaptureError,
    PositionLostError,
    SetupError,
    SourceUnavailableError,
)
from tidemill.connect.cdc.mariadb.check import check_server


@dataclass(frozen=True, slots=True)
class GtidPosition:
    """A place in the binary log: the last event group that was read in each replication domain.

    Attributes:
        groups: replication domain -> (server, sequence number) of the last group in it.
        skip: the number of rows events of the next group that were read too.
        server: the ``server_id`` of the server that ``skip`` is of: a replica can write the rows of
            a group into more or fewer events. 0 if it is not known.
    """

    groups: dict[int, tuple[int, int]]
    skip: int = 0
    server: int = field(default=0, compare=False)

    @classmethod
    def parse(cls, position: Position) -> GtidPosition:
        """Read a stored position."""
        gtid, skip, server = (position.get(key, 0) for key in ("gtid", "skip", "server_id"))
        if not (isinstance(gtid, str) and isinstance(skip, int) and isinstance(server, int)):
            raise PermanentCaptureError(f"not a position of a MariaDB source: {position}")
        return cls(parse_gtid(gtid), skip, server)

    @property
    def gtid(self) -> str:
        """The ids as the server takes them."""
        return ",".join(
            f"{domain}-{server}-{sequence}"
            for domain, (server, sequence) in sorted(self.groups.items())
        )

    def stored(self) -> Position:
        """Return the position as it is stored."""
        found: Position = {"gtid": self.gtid, "skip": self.skip}
        return {**found, "server_id": self.server} if self.skip else found

    def after(self, gtid: str, file: str, end: int) -> GtidPosition:
        """Return the position behind an event group; its place in a file does not matter."""
        return GtidPosition({**self.groups, **parse_gtid(gtid)}, server=self.server)

    def at(self, file: str, end: int) -> GtidPosition:
        """Return the same position: only ids count."""
        return self

    def within(self, events: int) -> GtidPosition:
        """Return the position behind so many rows events of the next group."""
        return GtidPosition(self.groups, events, self.server)

    def reached(self, goal: GtidPosition) -> bool:
        """Return whether this position is at or behind another one, in all of its domains."""
        return all(
            self.groups.get(domain, (0, -1))[1] >= sequence
            for domain, (_, sequence) in goal.groups.items()
        )


def parse_gtid(text: str) -> dict[int, tuple[int, int]]:
    """Parse ids such as ``0-1-100,1-2-7``."""
    groups = {}
    for each in filter(None, text.split(",")):
        try:
            domain, server, sequence = (int(part) for part in each.split("-"))
        except ValueError as error:
            raise PermanentCaptureError(f"invalid GTID {each!r} in {text!r}") from error
        groups[domain] = (server, sequence)
    return groups


SNAPSHOT_WAIT_S = 10
"""How long a snapshot may be behind the stream, in seconds. It is behind for the moment between
the write of a transaction to the binary log and its commit in the storage engine."""


_CAN_GTID = 4
"""``@mariadb_slave_capability``: this replica understands GTID events."""


def _server_id(connection: pymysql.Connection[Any]) -> int:
    ((found,),) = query(connection, "SELECT @@global.server_id")
    return int(found)


class MariaDb:
    """MariaDB 10.5 and newer (``Dialect``)."""

    name = "MariaDB"
    map_rules = MARIADB
    collations = (
        "SELECT id, character_set_name FROM information_schema.collation_character_set_"
        "applicability WHERE id IS NOT NULL"
    )
    parse = staticmethod(GtidPosition.parse)
    check = staticmethod(check_server)

    def prepare(self, connection: pymysql.Connection[Any]) -> None:
        """Do nothing: MariaDB needs no more settings."""

    def present(self, connection: pymysql.Connection[Any]) -> GtidPosition:
        """Return the position of the last transaction."""
        ((gtid,),) = query(connection, "SELECT @@global.gtid_binlog_pos")
        return GtidPosition(parse_gtid(gtid or ""), server=_server_id(connection))

    def resume(self, connection: pymysql.Connection[Any], position: GtidPosition) -> GtidPosition:
        """Return the position itself: the server refuses it when the stream is read.

        Raises:
            PositionLostError: the position is within a transaction of another server.
        """
        server = _server_id(connection)
        if position.skip and position.server not in (0, server):
            raise PositionLostError(
                f"the position is within a large transaction of the server {position.server}, and "
                f"this is the server {server}, which can have split its rows differently",
                hint="Connect to that server until the transaction is captured. Or take a new "
                "snapshot: tidemill source restart NAME --resnapshot",
            )
        return replace(position, server=server)

    def request(
        self, connection: pymysql.Connection[Any], position: GtidPosition, server_id: int
    ) -> tuple[int, bytes]:
        """Set up a session for the stream; return the command that starts it, and its body."""
        with connection.cursor() as cursor:
            cursor.execute("SET @mariadb_slave_capability = %s", (_CAN_GTID,))
            cursor.execute("SET @slave_connect_state = %s", (position.gtid,))
            cursor.execute("SET @slave_gtid_strict_mode = 1")
            cursor.execute("SET @slave_gtid_ignore_duplicates = 0")
        # The place in a file, flags, the id; no file name.
        return COM_BINLOG_DUMP, struct.pack("<IHI", 4, 0, server_id)

    @contextmanager
    def snapshot(
        self, connection: pymysql.Connection[Any], delivered: GtidPosition | None
    ) -> Iterator[GtidPosition]:
        """Open a transaction that sees at least what the stream has delivered."""
        deadline = time.monotonic() + SNAPSHOT_WAIT_S
        while True:
            with self.exact_snapshot(connection) as at:
                if delivered is None or at.reached(delivered):
                    yield at
                    return
                if time.monotonic() > deadline:
                    raise SourceUnavailableError(
                        f"a snapshot stays behind the binary log: it is at {at.gtid!r}, the stream "
                        f"at {delivered.gtid!r}"
                    )

    @contextmanager
    def exact_snapshot(self, connection: pymysql.Connection[Any]) -> Iterator[GtidPosition]:
        """Open a transaction that sees exactly what is committed at the position it gives.

        MariaDB says for a transaction WITH CONSISTENT SNAPSHOT which position of the binary log it
        corresponds to. So the rows are exactly those of that position, for tables of InnoDB.
        """
        deadline = time.monotonic() + SNAPSHOT_WAIT_S
        while True:
            ((before,),) = query(connection, "SELECT @@global.gtid_binlog_pos")
            with read_view(connection):
                gtid = _snapshot_gtid(connection, before)
                if gtid is not None:
                    yield GtidPosition(parse_gtid(gtid))
                    return
            if time.monotonic() > deadline:
                raise SourceUnavailableError(
                    "the server can't say at which transaction a snapshot was taken. It can't if "
                    "its binary log has an event above max_allowed_packet, while it commits often: "
                    "try again, raise max_allowed_packet, or FLUSH BINARY LOGS"
                )


def _snapshot_gtid(connection: pymysql.Connection[Any], before: str | None) -> str | None:
    """Return the ids of the transactions that a read view sees; None if it is not known.

    Args:
        before: the ids of the binary log from before the read view was opened.
    """
    status = dict(query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
    file = status.get("Binlog_snapshot_file")
    if not file:
        raise SetupError(
            "the server has no binary log",
            hint="Set log_bin in the server's configuration, and start the server again.",
        )
    end = int(status.get("Binlog_snapshot_position") or 0)
    last = [(str(each[0]), int(each[1])) for each in query(connection, "SHOW MASTER STATUS")]
    ((after,),) = query(connection, "SELECT @@global.gtid_binlog_pos")
    if before == after and last == [(file, end)]:
        return str(after or "")  # nothing was written in between: the view is of the log's end
    # The server reads the whole file for it, and gives up at an event above max_allowed_packet.
    ((gtid,),) = query(connection, "SELECT BINLOG_GTID_POS(%s, %s)", file, end)
    return None if gtid is None else str(gtid)
