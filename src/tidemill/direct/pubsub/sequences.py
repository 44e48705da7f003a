"""Finds lost messages by their sequences. Must not know: sockets, either library."""

from __future__ import annotations

from tidemill.direct.pubsub.errors import PubSubError
from tidemill.direct.pubsub.wire import MESSAGE, STATE, Event, Header, Lost, Message


class Published:
    """The sequences of a publisher's channels.

    Args:
        most: channels at most. Numbers of a channel can't be forgotten, so more are refused.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: dict[bytes, int] = {}

    def next(self, channel: bytes) -> int:
        """Return the sequence of the next message of a channel.

        Raises:
            PubSubError: there are too many channels.
        """
        last = self._last.get(channel, 0)
        if not last and len(self._last) >= self._most:
            raise PubSubError(
                f"a publisher has at most {self._most:,} channels",
                hint="Raise max_channels, or put what distinguishes messages into the payload.",
            )
        self._last[channel] = last + 1
        return last + 1

    def states(self) -> list[tuple[bytes, int]]:
        """Return each channel with the last sequence that was used in it."""
        return list(self._last.items())


class Received:
    """The last sequence of each publisher and channel, as a subscriber saw it.

    Args:
        most: pairs of publisher and channel at most. The pair that was silent for the longest time
            makes room for a new one.

    Attributes:
        received: messages that are delivered.
        lost: messages that did not arrive.
        doubled: messages that arrived again, and are left out.
        forgotten: pairs that made room. What such a pair loses meanwhile is not found.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: dict[tuple[int, bytes], int] = {}
        self.received = self.lost = self.doubled = self.forgotten = 0

    def take(self, channel: bytes, header: Header, payload: bytes) -> list[Event]:
        """Return what a message means: a loss before it, and the message unless it is known."""
        kind, publisher, sequence = header
        pair = (publisher, channel)
        last = self._last.pop(pair, None)
        if last is None:
            # What came before the subscription is not a loss.
            last = sequence - 1 if kind == MESSAGE else sequence
            if len(self._last) >= self._most:
                del self._last[next(iter(self._last))]
                self.forgotten += 1
        self._last[pair] = max(last, sequence)  # at the end of the dict: the newest
        events: list[Event] = []
        end = sequence if kind == MESSAGE else sequence + 1
        if end > last + 1:
            events.append(Lost(channel, publisher, last + 1, end - last - 1))
            self.lost += end - last - 1
        if kind == STATE:
            return events
        if sequence <= last:
            self.doubled += 1
            return events
        self.received += 1
        events.append(Message(channel, payload, publisher, sequence))
        return events
