"""The receiver of a stream, without sockets: packets in, messages and requests out.

All open gaps are asked for together. The first request of a gap comes after a random delay, because
a packet that was lost for one receiver was often lost for all, and they must not ask at the same
time. The next ones come after pauses that double. Time is a parameter.

Must not know: sockets, a clock.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.direct.multicast.wire import MOST_MESSAGES, Packet, Request

_PAUSE_MS = 20
"""The least pause before a gap is asked for again."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message. An empty one stands for an offset without a record."""

    sequence: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Messages that do not come any more: no server has them, or none has answered in time."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """Another session has begun: its messages have nothing to do with those before."""

    session: bytes


Event = Received | Lost | Restarted


@dataclass(slots=True)
class _Gap:
    """Missing messages from ``first`` to before ``end``."""

    first: int
    end: int
    due_ms: int
    tries: int = 0
    since_ms: int = 0


class Receiver:
    """Puts the messages of a stream in order, and says what to ask for.

    Args:
        session: The session to resume; None takes the first that comes.
        sequence: The next message that is wanted; None starts with the first that comes.
        is_ordered: Whether messages wait for those before them. Otherwise each is delivered when it
            comes, and once.
        delay_ms: A gap is first asked for after 0 to so many milliseconds.
        longest_pause_ms: Pauses between requests double up to this.
        give_up_ms: A gap that no server has filled for so long is lost.
        most_waiting: Messages that can wait behind gaps. Above that, the oldest gap is lost.
        seed: For the random delays.

    Attributes:
        session: The present session, or None.
        next: The next message that was not delivered, with all before it delivered or lost.
        recovered: Messages that came after they had been asked for.
        doubles: Messages that came more than once.
    """

    def __init__(
        self,
        session: bytes | None = None,
        sequence: int | None = None,
        *,
        is_ordered: bool = True,
        delay_ms: int = 5,
        longest_pause_ms: int = 1000,
        give_up_ms: int = 30_000,
        most_waiting: int = 1_000_000,
        seed: int | None = None,
    ) -> None:
        self.session = session
        self.next = sequence
        self.recovered = self.doubles = self.lost = 0
        self.is_ended = False
        self._is_ordered = is_ordered
        self._delay_ms = delay_ms
        self._longest_pause_ms = longest_pause_ms
        self._give_up_ms = give_up_ms
        self._most_waiting = most_waiting
        self._random = random.Random(seed)
        self._end = sequence or 0
        self._gaps: list[_Gap] = []  # by sequence, apart from each other
        self._waiting: dict[int, bytes] = {}
        self._early: set[int] = set()  # delivered behind a gap
        self._skips: dict[int, int] = {}  # lost, by the first: the end

    @property
    def missing(self) -> int:
        """The number of messages that are asked for."""
        return sum(gap.end - gap.first for gap in self._gaps)

    # --- packets ------------------------------------------------------------------------------

    def take(self, packet: Packet, now_ms: int, *, is_answer: bool = False) -> list[Event]:
        """Take a packet, and return what can be delivered.

        Args:
            is_answer: Whether a re-request server has sent it to this receiver only. Without
                messages, it then says that no message before its sequence exists any more.
        """
        events: list[Event] = []
        if packet.session != self.session:
            if is_answer:
                return events
            if self.session is not None:
                events += self._give_up_all()
                events.append(Restarted(packet.session))
                self.next = None
                self.is_ended = False
            self.session = packet.session
        if self.next is None:
            self.next = self._end = packet.sequence
        if is_answer and not packet.messages:
            events += self._lose_before(packet.sequence)
            events += self._deliver()
            return events
        self._open(packet.sequence, packet.sequence + len(packet.messages), now_ms)
        for sequence, message in enumerate(packet.messages, packet.sequence):
            self._add(sequence, message, events)
        if is_answer:
            self._ask_for_more(packet.sequence + len(packet.messages), now_ms)
        if packet.is_end:
            self.is_ended = True
        events += self._lose_above_limit()
        events += self._deliver()
        return events

    def _open(self, first: int, end: int, now_ms: int) -> None:
        """Note that the stream has come to ``end``; what is missing before ``first`` is a gap."""
        if first > self._end:
            delay = self._random.randint(0, self._delay_ms)
            self._gaps.append(_Gap(self._end, first, now_ms + delay, since_ms=now_ms))
        self._end = max(self._end, end)

    def _add(self, sequence: int, message: bytes, events: list[Event]) -> None:
        assert self.next is not None
        if sequence < self.next or sequence in self._waiting or sequence in self._early:
            self.doubles += 1
            return
        if self._fill(sequence):
            self.recovered += 1
        if self._is_ordered:
            self._waiting[sequence] = message
        else:
            self._early.add(sequence)
            events.append(Received(sequence, message))

    def _fill(self, sequence: int) -> bool:
        """Take a message out of its gap; return whether it had been asked for."""
        at = bisect.bisect_right(self._gaps, sequence, key=lambda gap: gap.first) - 1
        if at < 0 or sequence >= self._gaps[at].end:
            return False
        gap = self._gaps[at]
        was_asked = gap.tries > 0
        parts = []
        if gap.first < sequence:
            parts.append(_Gap(gap.first, sequence, gap.due_ms, gap.tries, gap.since_ms))
        if sequence + 1 < gap.end:
            parts.append(_Gap(sequence + 1, gap.end, gap.due_ms, gap.tries, gap.since_ms))
        self._gaps[at : at + 1] = parts
        return was_asked

    def _deliver(self) -> Iterator[Event]:
        """Yield what comes next in order."""
        assert self.next is not None
        while self.next < self._end and not (self._gaps and self._gaps[0].first == self.next):
            if (end := self._skips.pop(self.next, None)) is not None:
                if self._is_ordered:
                    yield Lost(self.next, end - self.next)
                self.next = end
                continue
            if self.next in self._waiting:
                yield Received(self.next, self._waiting.pop(self.next))
            self._early.discard(self.next)
            self.next += 1

    # --- gaps ---------------------------------------------------------------------------------

    def requests(self, now_ms: int) -> list[Request]:
        """Return the requests that are due now, for all gaps."""
        if self.session is None:
            return []
        found = []
        for gap in self._gaps:
            if gap.due_ms > now_ms:
                continue
            count = min(gap.end - gap.first, MOST_MESSAGES)
            found.append(Request(self.session, gap.first, count))
            gap.tries += 1
            first_pause = max(4 * self._delay_ms, _PAUSE_MS)
            pause = min(first_pause * 2 ** min(gap.tries - 1, 16), self._longest_pause_ms)
            gap.due_ms = now_ms + pause + self._random.randint(0, self._delay_ms)
        return found

    def expire(self, now_ms: int) -> list[Event]:
        """Return what is lost because no server has filled it in time, and what follows it."""
        events: list[Event] = []
        late = [gap for gap in self._gaps if gap.since_ms + self._give_up_ms <= now_ms]
        for gap in late:
            self._gaps.remove(gap)
            events += self._lose(gap.first, gap.end)
        return events + list(self._deliver()) if late else events

    def _ask_for_more(self, end: int, now_ms: int) -> None:
        """Let the rest of a gap be asked for soon, because an answer has filled its start.

        Other packets of the same answer can be on the way, so it is not asked for immediately.
        """
        for gap in self._gaps:
            if gap.first == end:
                gap.tries, gap.since_ms = 1, now_ms
                gap.due_ms = now_ms + self._delay_ms

    def next_due_ms(self) -> int | None:
        """Return when ``requests`` or ``expire`` has something to do."""
        times = [min(gap.due_ms, gap.since_ms + self._give_up_ms) for gap in self._gaps]
        return min(times, default=None)

    def _lose(self, first: int, end: int) -> Iterator[Event]:
        """Note a loss. In order, it is reported when it is its turn."""
        self.lost += end - first
        self._skips[first] = end
        if not self._is_ordered:
            yield Lost(first, end - first)

    def _lose_before(self, sequence: int) -> Iterator[Event]:
        """Lose all that is missing before a message, because no server has it."""
        while self._gaps and self._gaps[0].first < sequence:
            gap = self._gaps[0]
            if gap.end <= sequence:
                self._gaps.pop(0)
                yield from self._lose(gap.first, gap.end)
            else:
                first, gap.first = gap.first, sequence
                yield from self._lose(first, sequence)

    def _lose_above_limit(self) -> Iterator[Event]:
        while self._gaps and len(self._waiting) + len(self._early) > self._most_waiting:
            gap = self._gaps.pop(0)
            yield from self._lose(gap.first, gap.end)
            yield from self._deliver()

    def _give_up_all(self) -> Iterator[Event]:
        """Yield what is left of a session that has ended."""
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            yield from self._lose(gap.first, gap.end)
        yield from self._deliver()
        self._waiting.clear()
        self._early.clear()
        self._skips.clear()
