"""A partition as a subscriber follows it: blocks in, records and requests out.

A block that continues at the position is delivered. One that begins behind it shows a gap: it waits
until an answer has filled the gap. One that ends before it is known. Time is a parameter.

Must not know: sockets, a clock.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.direct.pubsub.blocks import BlockHead, LogRecord, decode_head, decode_records
from tidemill.direct.pubsub.errors import FrameError

_WAITING_BYTES = 8 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0


class Position(NamedTuple):
    """A place in a partition.

    Attributes:
        session: that of the topic. A topic that is created again has another one.
        offset: of the next record.
    """

    session: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogLost:
    """Offsets that the log does not have any more, so that they can't be delivered.

    Attributes:
        partition: their partition.
        first: the first one.
        count: how many. Some of them possibly had no record.
    """

    partition: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LogRestarted:
    """The partition begins again: its topic was created again, or the log has lost its end.

    Attributes:
        partition: the partition.
        position: where it continues.
    """

    partition: int
    position: Position


LogEvent = LogRecord | LogLost | LogRestarted


class Following:
    """One partition, as a subscriber knows it.

    Args:
        partition: its number.
        position: where to continue; None: at the beginning of the log.
        last_values: whether only the last record of each key is wanted of what was before.

    Attributes:
        end: the offset behind the last record that is known to exist.
        asked: the number of the request that is under way.
        malformed: blocks that are invalid, and are left out.
    """

    def __init__(self, partition: int, position: Position | None, *, last_values: bool) -> None:
        self.partition = partition
        self.last_values = last_values
        self.end = self.malformed = 0
        self.asked: int | None = None
        self._session = position.session if position else None
        self._offset = position.offset if position else None
        self._is_unsure = False
        self._table: dict[bytes | int, LogRecord] | None = None
        self._table_end: int | None = None
        if last_values and position is None:
            self._table = {}
        self._waiting: deque[tuple[BlockHead, bytes]] = deque()
        self._waiting_bytes = 0
        self._due, self._pause, self._asked_offset = 0.0, FIRST_PAUSE_S, 0

    @property
    def position(self) -> Position | None:
        """The place behind what was delivered; None before the first record or answer."""
        if self._session is None or self._offset is None or self._table is not None:
            return None
        return Position(self._session, self._offset)

    @property
    def is_live(self) -> bool:
        """Whether all that is known to exist was delivered."""
        position = self.position
        return position is not None and position.offset >= self.end and not self._is_unsure

    # --- requests -----------------------------------------------------------------------------

    def due_in(self, now: float) -> float | None:
        """Return the seconds until it must ask; None if there is nothing to ask for."""
        return None if self.is_live else max(self._due - now, 0.0)

    def ask(self, number: int, now: float) -> int:
        """Note that a request goes out, and return the offset to ask for.

        The next one follows after a pause that doubles, with a random part: after the end of a
        publisher, all subscribers ask.
        """
        self.asked = number
        self._due = now + self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_S)
        self._asked_offset = self._offset or 0
        return self._asked_offset

    # --- what comes ---------------------------------------------------------------------------

    def take_end(self, session: int, end: int) -> None:
        """Take the end of the log from a state."""
        if self._session is None or session == self._session:
            self.end = max(self.end, end)
        else:
            self._is_unsure = True

    def take_live(self, data: bytes) -> list[LogEvent]:
        """Return what a published block brings."""
        head = self._head(data)
        if head is None:
            return []
        if head.session != self._session:
            # It is of before or after the topic was created again. An answer decides.
            self._is_unsure = True
            return []
        self.end = max(self.end, head.following)
        if self._offset is None or head.first > self._offset:
            self._wait(head, data)
            return []
        events = self._deliver(head, data) + self._complete()
        if self.is_live:
            self._rest()
        return events

    def take_answer(self, number: int, blocks: Sequence[bytes]) -> list[LogEvent]:
        """Return what an answer brings. Only that of the last request counts."""
        if number != self.asked:
            return []
        before = self._session, self._offset
        self.asked, self._is_unsure = None, False
        events: list[LogEvent] = []
        for data in blocks:
            head = self._head(data)
            if head is None:
                break
            if head.session != self._session and self._session is not None:
                events.append(self._restart(head.session, 0))
                break
            if head.following < self._asked_offset:
                events.append(self._restart(head.session, head.following))
                break
            events += self._fill(head, data)
        events += self._complete()
        if self.is_live or before != (self._session, self._offset):
            self._rest()  # or else it is not asked again before the pause is over
        return events

    def _fill(self, head: BlockHead, data: bytes) -> list[LogEvent]:
        """Deliver a block of an answer, and what waited for it."""
        events: list[LogEvent] = []
        self._session = head.session
        self.end = max(self.end, head.following)
        if self._table is not None and self._table_end is None:
            self._table_end = self.end
        if self._offset is None:
            self._offset = head.first
        elif head.first > self._offset:
            if self._table is None:
                events.append(LogLost(self.partition, self._offset, head.first - self._offset))
            self._offset = head.first
        events += self._deliver(head, data)
        while self._waiting and self._waiting[0][0].first <= self._offset:
            head, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            events += self._deliver(head, data)
        return events

    def _restart(self, session: int, offset: int) -> LogRestarted:
        self._session, self._offset, self.end = session, offset, 0
        self._waiting.clear()
        self._waiting_bytes = 0
        self._table = None
        self._is_unsure = True
        return LogRestarted(self.partition, Position(session, offset))

    def _rest(self) -> None:
        self._due, self._pause = 0.0, FIRST_PAUSE_S

    def _head(self, data: bytes) -> BlockHead | None:
        try:
            return decode_head(data)
        except FrameError:
            self.malformed += 1
            return None

    def _wait(self, head: BlockHead, data: bytes) -> None:
        """Keep a block behind a gap. The oldest ones make room: an answer has them, too."""
        self._waiting.append((head, data))
        self._waiting_bytes += len(data)
        while self._waiting_bytes > _WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft()[1])

    def _deliver(self, head: BlockHead, data: bytes) -> list[LogEvent]:
        """Return the records of a block that are not known, and move the position."""
        offset = self._offset or 0
        if head.following <= offset:
            return []
        try:
            found = decode_records(data, head)
        except FrameError:
            self.malformed += 1  # the position stays, so that it is asked for again
            return []
        if head.first < offset:
            found = [each for each in found if each.offset >= offset]
        self._offset = head.following
        if self._table is None:
            return list(found)
        for each in found:
            key = each.offset if each.key is None else each.key
            self._table.pop(key, None)  # so that it is at the end
            if each.value is not None or each.key is None:
                self._table[key] = each
        return []

    def _complete(self) -> list[LogEvent]:
        """Return the table of last values as soon as it is complete."""
        table, end = self._table, self._table_end
        if table is None or end is None or (self._offset or 0) < end:
            return []
        self._table = None
        return list(table.values())
