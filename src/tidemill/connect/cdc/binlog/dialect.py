"""The contract between the capture from a binary log and a kind of server: MariaDB or MySQL.

The servers differ in their transaction ids, in the request for the stream, in how rows are read as
of a position, and in what has to be set. Must not know: how events are decoded, or Kafka.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

import pymysql

from tidemill.connect.cdc.binlog.decoding.table_map import MapRules
from tidemill.connect.cdc.contract import Capture, Finding, Position


class LogPosition(Protocol):
    """A place in the binary log: what was read completely, and a part of the next event group."""

    @property
    def skip(self) -> int:
        """The number of rows events of the next group that were read too."""
        ...

    @property
    def gtid(self) -> str:
        """The transaction ids that were read, as the server writes them."""
        ...

    def stored(self) -> Position:
        """Return the position as it is stored."""
        ...

    def after(self, gtid: str, file: str, end: int) -> Self:
        """Return the position behind an event group.

        Args:
            gtid: the id of the group.
            file: the file of the binary log that the group ends in.
            end: the place in the file behind the group.
        """
        ...

    def at(self, file: str, end: int) -> Self:
        """Return the position behind an event that belongs to no group."""
        ...

    def within(self, events: int) -> Self:
        """Return the position behind so many rows events of the next group."""
        ...

    def reached(self, goal: Self) -> bool:
        """Return whether this position is at or behind another one."""
        ...


P = TypeVar("P", bound=LogPosition)


class Dialect(Protocol[P]):
    """A kind of server.

    Attributes:
        name: its name, for messages.
        map_rules: how its table maps differ.
        collations: a query for (id of a collation, name of its character set).
    """

    name: str
    map_rules: MapRules
    collations: str

    def parse(self, position: Position) -> P:
        """Read a stored position.

        Raises:
            PermanentCaptureError: it belongs to another kind of source.
        """
        ...

    def prepare(self, connection: pymysql.Connection[Any]) -> None:
        """Set up the session of a new connection."""
        ...

    def check(self, connection: pymysql.Connection[Any], capture: Capture) -> list[Finding]:
        """Find what the server lacks for capture."""
        ...

    def present(self, connection: pymysql.Connection[Any]) -> P:
        """Return a position: the stream from there has everything that is committed later."""
        ...

    def resume(self, connection: pymysql.Connection[Any], position: P) -> P:
        """Return where a stream continues after a stored position.

        Raises:
            PositionLostError: the server can't continue there.
        """
        ...

    def request(
        self, connection: pymysql.Connection[Any], position: P, server_id: int
    ) -> tuple[int, bytes]:
        """Set up a session for the stream; return the command that starts it, and its body."""
        ...

    def snapshot(
        self, connection: pymysql.Connection[Any], delivered: P | None
    ) -> AbstractContextManager[P]:
        """Open a transaction that sees at least what the stream has delivered.

        The context gives a position that has at least all that the transaction sees.

        Raises:
            SourceUnavailableError: the tables stay behind the stream.
        """
        ...

    def exact_snapshot(self, connection: pymysql.Connection[Any]) -> AbstractContextManager[P]:
        """Open a transaction that sees exactly what is committed at the position it gives."""
        ...
