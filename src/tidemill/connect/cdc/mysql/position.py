"""Positions in the binary log of MySQL: sets of transaction ids, and the place in a file.

Ids are written ``uuid:1-5:7``, since 8.3 also ``uuid:tag:1-5``. Source: MySQL manual, "GTID Format
and Storage"; MySQL source documentation, ``Gtid_set::encode``.

The ids say where a stream continues. The place says whether the stream has passed a moment of this
server: a snapshot can see transactions whose ids the server does not list yet, but none that is
behind the end of its binary log. Must not know a connection.
"""

from __future__ import annotations

import re
import struct
import uuid
from bisect import bisect_right
from dataclasses import dataclass

from tidemill.connect.cdc.contract import Position
from tidemill.connect.cdc.errors import PermanentCaptureError

Interval = tuple[int, int]
"""The first and the last number."""

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")


@dataclass(frozen=True, slots=True)
class GtidSet:
    """Transaction ids.

    Attributes:
        intervals: the numbers by source: ``uuid`` or ``uuid:tag``. They are in order, and do not
            touch each other.
    """

    intervals: dict[str, tuple[Interval, ...]]

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parse a set as the server writes it."""
        found: dict[str, list[Interval]] = {}
        for each in filter(None, re.split(r"[,\s]+", text)):
            first, *parts = each.split(":")
            try:
                source = plain = str(uuid.UUID(first))
            except ValueError as error:
                raise PermanentCaptureError(f"invalid GTID {each!r} in {text!r}") from error
            for part in parts:
                if match := _INTERVAL.fullmatch(part):
                    begin = int(match[1])
                    found.setdefault(source, []).append((begin, int(match[2] or begin)))
                elif _TAG.fullmatch(part.lower()):
                    source = f"{plain}:{part.lower()}"
                else:
                    raise PermanentCaptureError(f"invalid GTID {each!r} in {text!r}")
        return cls({source: _merged(each) for source, each in found.items()})

    def __str__(self) -> str:
        return ",".join(
            f"{source}:" + ":".join(_interval_text(*each) for each in intervals)
            for source, intervals in sorted(self.intervals.items())
        )

    def with_id(self, gtid: str) -> GtidSet:
        """Return the set with one more id: ``uuid:7`` or ``uuid:tag:7``."""
        source, _, text = gtid.rpartition(":")
        number = int(text)
        intervals = self.intervals.get(source, ())
        if intervals and intervals[-1][1] + 1 == number:  # the usual case
            changed = (*intervals[:-1], (intervals[-1][0], number))
        elif any(first <= number <= last for first, last in intervals):
            return self
        else:
            changed = _merged([*intervals, (number, number)])
        return GtidSet({**self.intervals, source: changed})

    def contains(self, other: GtidSet) -> bool:
        """Return whether all ids of another set are in this one."""
        return all(
            _covers(self.intervals.get(source, ()), each)
            for source, intervals in other.intervals.items()
            for each in intervals
        )

    def encode(self) -> bytes:
        """Return the set as the command for the stream has it. Only sets with tags need 8.3."""
        has_tags = any(":" in source for source in self.intervals)
        count = len(self.intervals)
        header = 1 << 56 | count << 8 | 1 if has_tags else count
        parts = [struct.pack("<Q", header)]
        for source, intervals in sorted(self.intervals.items()):
            plain, _, tag = source.partition(":")
            parts.append(uuid.UUID(plain).bytes)
            if has_tags:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
        return b"".join(parts)


def _interval_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _merged(intervals: list[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _covers(intervals: tuple[Interval, ...], wanted: Interval) -> bool:
    index = bisect_right(intervals, wanted[0], key=lambda each: each[0]) - 1
    return index >= 0 and intervals[index][1] >= wanted[1]


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
        """Read a stored position."""
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
