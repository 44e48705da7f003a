"""Positions in the binary log of MariaDB: global transaction ids (GTIDs).

A position has the last event group that was read in each replication domain, and how many rows
events of the next group were read. Must not know a connection.

Source: MariaDB documentation, "Global Transaction ID".
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.connect.cdc.contract import Position
from tidemill.connect.cdc.errors import PermanentCaptureError


@dataclass(frozen=True, slots=True)
class GtidPosition:
    """A place in the binary log.

    Attributes:
        groups: replication domain -> (server, sequence number) of the last group in it.
        skip: the number of rows events of the next group that were read too.
    """

    groups: dict[int, tuple[int, int]]
    skip: int = 0

    @classmethod
    def parse(cls, position: Position) -> GtidPosition:
        """Read a stored position.

        Raises:
            PermanentCaptureError: it is not a position of a MariaDB source.
        """
        gtid, skip = position.get("gtid"), position.get("skip", 0)
        if not isinstance(gtid, str) or not isinstance(skip, int):
            raise PermanentCaptureError(f"not a position of a MariaDB source: {position}")
        return cls(parse_gtid(gtid), skip)

    @property
    def gtid(self) -> str:
        """The ids as the server takes them."""
        return ",".join(
            f"{domain}-{server}-{sequence}"
            for domain, (server, sequence) in sorted(self.groups.items())
        )

    def stored(self) -> Position:
        """Return the position as it is stored."""
        return {"gtid": self.gtid, "skip": self.skip}

    def after(self, gtid: str, file: str, end: int) -> GtidPosition:
        """Return the position behind an event group; its place in a file does not matter."""
        return GtidPosition({**self.groups, **parse_gtid(gtid)})

    def at(self, file: str, end: int) -> GtidPosition:
        """Return the same position: only ids count."""
        return self

    def within(self, events: int) -> GtidPosition:
        """Return the position behind so many rows events of the next group."""
        return GtidPosition(self.groups, events)

    def reached(self, goal: GtidPosition) -> bool:
        """Return whether this position is at or behind another one, in all of its domains."""
        return all(
            self.groups.get(domain, (0, -1))[1] >= sequence
            for domain, (_, sequence) in goal.groups.items()
        )


def parse_gtid(text: str) -> dict[int, tuple[int, int]]:
    """Parse ids such as ``0-1-100,1-2-7``.

    Raises:
        PermanentCaptureError: the text is invalid.
    """
    groups = {}
    for each in filter(None, text.split(",")):
        try:
            domain, server, sequence = (int(part) for part in each.split("-"))
        except ValueError as error:
            raise PermanentCaptureError(f"invalid GTID {each!r} in {text!r}") from error
        groups[domain] = (server, sequence)
    return groups
