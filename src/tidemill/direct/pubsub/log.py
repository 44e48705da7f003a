"""A subscriber of a log: it gets what was before, then what comes, without a gap and nothing twice.

This is the Clone of the ZeroMQ guide. The subscriber subscribes first and asks afterwards, drops
what it has, and asks again whenever a block is missing. Source: https://zguide.zeromq.org, chapter
5, "Reliable Pub-Sub (Clone Pattern)".

Must not know: a broker, who publishes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from tidemill.direct.closing import Closing
from tidemill.direct.pubsub.blocks import (
    DESCRIBE,
    NUMBER,
    READ,
    READ_LAST,
    STATE_CHANNEL,
    Request,
    channel_of,
    decode_state,
    encode_request,
)
from tidemill.direct.pubsub.curve import Curve
from tidemill.direct.pubsub.errors import FrameError, PubSubError
from tidemill.direct.pubsub.following import Following, LogEvent, Position
from tidemill.direct.pubsub.options import MAX_MESSAGE_BYTES, Options
from tidemill.direct.pubsub.zeromq import ZeroMqSocket

_QUEUE = 1000
_SILENCE_S = 3.0
"""A bridge publishes its state each second. After so long without it, the subscriber asks."""
_DESCRIBE_S = 1.0
_LONGEST_NUMBER = 10
_AT_ONCE = 2
"""So many partitions ask at the same time: a bridge keeps no more answers for a requester."""
Start = Literal["earliest", "latest", "last-values"] | Mapping[int, Position | Sequence[int]]


class LogSubscriber(Closing):
    """Subscribes to a topic that a bridge publishes with ZeroMQ. Use it in one thread.

    Args:
        address: where the bridge publishes, ``tcp://HOST:PORT`` or ``ipc://PATH``.
        requests: where it answers requests.
        start: what comes first. ``earliest``: all that the log has. ``latest``: what is published
            from now on. ``last-values``: the last record of each key, without deleted ones, and
            then all that follows. ``positions`` of an earlier subscriber: what follows them;
            partitions that are not named begin with the earliest.
        partitions: the partitions to follow; by default all, also those that are added later.
        last_values: whether to leave out, of what was missed, records that a later one of the same
            key replaces. ``start="last-values"`` sets it.
        queue_size: blocks that wait for this subscriber.
        curve: encryption.

    Attributes:
        recovered: records that came as an answer.
        malformed: messages that are not of this protocol, and are left out.
        requested: requests that were sent.

    Raises:
        PubSubError: an address or an option can't be used.
        MissingPackageError: pyzmq is not installed.
    """

    def __init__(
        self,
        address: str,
        requests: str,
        *,
        start: Start = "earliest",
        partitions: Collection[int] | None = None,
        last_values: bool = False,
        queue_size: int = _QUEUE,
        curve: Curve | None = None,
    ) -> None:
        self._starts = _positions(start)
        self._is_latest = start == "latest"
        self._last_values = last_values or start == "last-values"
        self._partitions = None if partitions is None else set(partitions)
        self._followings: dict[int, Following] = {}
        self._numbers = itertools.count(1)
        self._asked_by: dict[int, Following] = {}
        self._describe_at, self._is_described = 0.0, False
        self.recovered = self.requested = self._malformed = 0
        options = Options(queue_size, max_message_bytes=MAX_MESSAGE_BYTES, curve=curve)
        channels = [channel_of(each) for each in self._partitions or ()] or [b""]
        self._live = ZeroMqSocket(
            "SUB", [address], options, bind=False, prefixes=[*channels, STATE_CHANNEL]
        )
        try:
            self._requests = ZeroMqSocket("DEALER", [requests], options, bind=False)
        except BaseException:
            self._live.close()
            raise

    @property
    def positions(self) -> dict[int, Position]:
        """The places to resume from: by partition, behind what ``poll`` has returned."""
        return {
            number: position
            for number, each in self._followings.items()
            if (position := each.position) is not None
        }

    @property
    def is_live(self) -> bool:
        """Whether all that is known to exist was delivered."""
        return self._is_described and all(each.is_live for each in self._followings.values())

    @property
    def malformed(self) -> int:
        """The messages that are not of this protocol."""
        return self._malformed + sum(each.malformed for each in self._followings.values())

    def poll(self, timeout_s: float) -> list[LogEvent]:
        """Return records and losses, by partition in order; wait up to so long for something.

        Store ``positions`` after all events of a call are processed.

        Raises:
            PubSubError: the subscriber is closed.
            ForkedError: the process was forked after the subscriber was opened.
        """
        end = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            pause = self._ask(now)
            self._live.wait_with(self._requests, min(pause, max(end - now, 0.0)))
            events: list[LogEvent] = []
            for frames in self._requests.receive(0):
                found = self._take_answer(frames)
                self.recovered += len(found)
                events += found
            for frames in self._live.receive(0):
                events += self._take_live(frames)
                self._describe_at = now + _SILENCE_S
            if events or time.monotonic() >= end:
                return events

    def close(self) -> None:
        """Close the sockets."""
        self._live.close()
        self._requests.close()

    # --- requests -----------------------------------------------------------------------------

    def _ask(self, now: float) -> float:
        """Send the requests that are due; return the seconds until the next one is."""
        if now >= self._describe_at:  # nothing is published: it asks what there is
            self._describe_at = now + _DESCRIBE_S
            self._send(Request(DESCRIBE, 0))
        pause = self._describe_at - now
        under_way = len(self._asked_by)
        for number, each in self._followings.items():
            due_in = each.due_in(now)
            if due_in is None:
                continue
            if due_in > 0:
                pause = min(pause, due_in)
            elif each.asked is not None or under_way < _AT_ONCE:
                under_way += each.asked is None
                self._forget(each)
                request = next(self._numbers) % 2**32
                self._asked_by[request] = each
                kind = READ_LAST if self._last_values else READ
                self._send(Request(kind, request, number, each.ask(request, now)))
        return pause

    def _send(self, request: Request) -> None:
        self.requested += 1
        self._requests.send((encode_request(request),))  # if it is lost, it is sent again

    def _forget(self, following: Following) -> None:
        if following.asked is not None:
            self._asked_by.pop(following.asked, None)

    # --- what comes ---------------------------------------------------------------------------

    def _take_answer(self, frames: list[bytes]) -> list[LogEvent]:
        if len(frames) < 2 or len(frames[0]) != NUMBER.size:
            self._malformed += 1
            return []
        (number,) = NUMBER.unpack(frames[0])
        if number == 0:
            self._take_state(frames[1], is_answer=True)
            return []
        following = self._asked_by.pop(number, None)
        return [] if following is None else following.take_answer(number, frames[1:])

    def _take_live(self, frames: list[bytes]) -> list[LogEvent]:
        if len(frames) != 2:
            self._malformed += 1
            return []
        channel, data = frames
        if channel == STATE_CHANNEL:
            self._take_state(data, is_answer=False)
            return []
        number = channel[:-1]
        is_number = number.isdigit() and len(number) <= _LONGEST_NUMBER
        following = self._followings.get(int(number)) if is_number else None
        # Before the first state, or of a partition that is not followed: an answer brings it.
        return [] if following is None else following.take_live(data)

    def _take_state(self, data: bytes, *, is_answer: bool) -> None:
        try:
            session, ends = decode_state(data)
        except FrameError:
            self._malformed += 1
            return
        if not (is_answer or self._is_described):
            return
        for number, end in ends.items():
            if self._partitions is not None and number not in self._partitions:
                continue
            if number not in self._followings:
                start = self._starts.get(number)
                if self._is_latest and not self._is_described:
                    start = Position(session, end)
                self._followings[number] = Following(number, start, last_values=self._last_values)
            self._followings[number].take_end(session, end)
        self._is_described = True


def _positions(start: Start) -> dict[int, Position]:
    if isinstance(start, Mapping):
        # JSON makes texts of numbers that are keys.
        return {int(number): Position(*each) for number, each in start.items()}
    if start not in ("earliest", "latest", "last-values"):
        raise PubSubError(
            f"invalid start {start!r}",
            hint="Use 'earliest', 'latest', 'last-values', or positions.",
        )
    return {}
