"""Positions in the binary log of MySQL: transaction ids, and the place in a file of one server.

The ids say where a stream continues. The place says whether the stream has passed a moment of this
server: a snapshot can see transactions whose ids the server does not list yet, but none that is
behind the end of its binary log. Must not know a connection.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.connect.cdc.contract import Position
from tidemill.connect.cdc.errors import PermanentCaptureError
from tidemill.connect.cdc.mysql.gtids import GtidSet


@dataclass(frozen=True, slots=True)
class MySqlPosition:
    """A place in the binary log.

    Attributes:
        ids: the transactions that were read.
        server: the ``server_uuid`` of the server whose files count.
        file: the file of the place; empty if it is not known.
        end: the place in it.
        skip: the number of rows events of the next transaction that were read too.
    """

    ids: GtidSet
    server: str
    file: str = ""
    end: int = 0
    skip: int = 0

    @classmethod
    def parse(cls, position: Position) -> MySqlPosition:
        """Read a stored position.

        Raises:
            PermanentCaptureError: it is not a position of a MySQL source.
        """
        gtid, server, file = (position.get(key) for key in ("gtid", "server_uuid", "file"))
        end, skip = position.get("pos"), position.get("skip")
        if not (isinstance(gtid, str) and isinstance(server, str) and isinstance(file, str)):
            raise PermanentCaptureError(f"not a position of a MySQL source: {position}")
        if not (isinstance(end, int) and isinstance(skip, int)):
            raise PermanentCaptureError(f"not a position of a MySQL source: {position}")
        return cls(GtidSet.parse(gtid), server, file, end, skip)

    @property
    def gtid(self) -> str:
        """The ids as the server takes them."""
        return str(self.ids)

    def stored(self) -> Position:
        """Return the position as it is stored."""
        return {
            "gtid": self.gtid,
            "server_uuid": self.server,
            "file": self.file,
            "pos": self.end,
            "skip": self.skip,
        }

    def after(self, gtid: str, file: str, end: int) -> MySqlPosition:
        """Return the position behind a transaction."""
        return MySqlPosition(self.ids.with_id(gtid), self.server, file, end)

    def at(self, file: str, end: int) -> MySqlPosition:
        """Return the position behind an event that belongs to no transaction."""
        return MySqlPosition(self.ids, self.server, file, end, self.skip)

    def within(self, events: int) -> MySqlPosition:
        """Return the position behind so many rows events of the next transaction."""
        return MySqlPosition(self.ids, self.server, self.file, self.end, events)

    def reached(self, goal: MySqlPosition) -> bool:
        """Return whether this position is at or behind another one, by the place in the files."""
        return self._place() >= goal._place()

    def _place(self) -> tuple[int, int]:
        number = self.file.rpartition(".")[2]
        return int(number) if number.isdecimal() else 0, self.end
