"""Publishers and subscribers, pushers and pullers, without a broker in between.

Must not know: a broker, what a message means.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from tidemill.direct.closing import Closing
from tidemill.direct.pubsub.curve import Curve
from tidemill.direct.pubsub.errors import FrameError, PubSubError
from tidemill.direct.pubsub.nng import NngSocket
from tidemill.direct.pubsub.options import (
    MAX_CHANNELS,
    MAX_MESSAGE_BYTES,
    QUEUE_SIZE,
    Options,
    check_range,
)
from tidemill.direct.pubsub.sequences import Published, Received
from tidemill.direct.pubsub.wire import (
    MESSAGE,
    STATE,
    Event,
    Header,
    check_channel,
    decode_frames,
    encode_header,
)
from tidemill.direct.pubsub.zeromq import ZeroMqSocket

Library = Literal["zeromq", "nng"]


class _Socket(Protocol):
    """A socket of either library."""

    addresses: list[str]

    def send(self, frames: Sequence[bytes]) -> bool: ...
    def receive(self, timeout_s: float) -> Iterator[list[bytes]]: ...
    def subscribers(self, timeout_s: float) -> int: ...
    def close(self) -> None: ...


class _Endpoint(Closing):
    """A side with one socket."""

    _socket: _Socket

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class _Sender(_Endpoint):
    """A side that sends, and usually binds."""

    @property
    def address(self) -> str:
        """The address as bound, with its port."""
        return self._socket.addresses[0]


class Publisher(_Sender):
    """Publishes messages to all subscribers. Use it as a context manager, in one thread.

    A message goes to the subscribers that are connected. With ZeroMQ, one whose queue is full keeps
    the message from all of them: it is counted in ``dropped``, after a wait of ``wait_s``. nng
    drops for that subscriber only, and counts nothing. Subscribers find both by the sequences.

    Args:
        address: ``inproc://NAME``, ``ipc://PATH`` or ``tcp://HOST:PORT``; port 0 is a free one.
        library: ``zeromq`` or ``nng``. Both sides use the same one.
        queue_size: messages that wait for each subscriber; at most 8,192 with nng.
        wait_s: seconds to wait for room in a full queue; 0 drops the message immediately.
        linger_s: seconds that ``close`` leaves for what is queued. It does not wait for readers.
        max_channels: channels at most, since the last sequence of each is remembered.
        max_message_bytes: bytes of a payload at most.
        curve: encryption, with ZeroMQ only.

    Attributes:
        id: the random number that tells subscribers this publisher from one before a restart.
        published: messages that the library took.
        dropped: messages that found a full queue.

    Raises:
        PubSubError: an address or an option can't be used.
        MissingPackageError: the library is not installed.
        ForkedError: nng was loaded before this process was forked.
    """

    def __init__(
        self,
        address: str,
        *,
        library: Library = "zeromq",
        queue_size: int = QUEUE_SIZE,
        wait_s: float = 0.0,
        linger_s: float = 0.0,
        max_channels: int = MAX_CHANNELS,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        curve: Curve | None = None,
    ) -> None:
        check_range("max_channels", max_channels, 1, 2**31 - 1)
        self._options = Options(queue_size, wait_s, linger_s, max_message_bytes, curve)
        self._published = Published(max_channels)
        self.id = secrets.randbits(64)
        self.published = self.dropped = 0
        if _is_zeromq(library):
            self._socket = ZeroMqSocket("XPUB", [address], self._options, bind=True)
        else:
            self._socket = NngSocket("Pub0", [address], self._options)

    def publish(self, channel: bytes, payload: bytes) -> bool:
        """Publish a message; return False if it was dropped because a queue is full.

        Raises:
            PubSubError: channel or payload is invalid, or the publisher is closed.
            ForkedError: the process was forked after the publisher was opened.
        """
        check_channel(channel)
        self._options.check_size(payload)
        sequence = self._published.next(channel)
        header = encode_header(Header(MESSAGE, self.id, sequence))
        if self._socket.send((channel, header, payload)):
            self.published += 1
            return True
        self.dropped += 1
        return False

    def publish_state(self) -> bool:
        """Publish the last sequence of each channel, and return whether a queue had room for all.

        A subscriber that missed the last messages finds that out before the next one comes. Call it
        from time to time, and before the end.

        Raises:
            PubSubError: the publisher is closed.
            ForkedError: the process was forked after the publisher was opened.
        """
        return all(
            self._socket.send((channel, encode_header(Header(STATE, self.id, last)), b""))
            for channel, last in self._published.states()
        )

    def wait_for_subscribers(self, count: int, timeout_s: float) -> bool:
        """Wait for subscribers, and return whether so many are there.

        With ZeroMQ, prefixes that are subscribed to are counted, those of all subscribers together.

        Raises:
            PubSubError: the publisher is closed.
            ForkedError: the process was forked after the publisher was opened.
        """
        end = time.monotonic() + timeout_s
        left = 0.0
        while self._socket.subscribers(left) < count:
            left = end - time.monotonic()
            if left <= 0:
                return False
        return True


class Subscriber(_Endpoint):
    """Receives messages of publishers, and reports what was lost. Use it in one thread.

    Args:
        addresses: one address of a publisher, or several. A publisher can start later.
        channels: prefixes of channels; by default all.
        library: ``zeromq`` or ``nng``, as the publisher uses.
        queue_size: messages that wait for this subscriber; at most 8,192 with nng.
        max_channels: pairs of publisher and channel whose sequences are remembered.
        max_message_bytes: bytes of a payload at most. A larger message is left out, and so it is
            lost. nng disconnects its publisher before it arrives, and dials again.
        curve: encryption, with ZeroMQ only.

    Attributes:
        sequences: counts of received, lost, doubled and forgotten.
        malformed: messages without the frames of this package.
        oversize: messages above ``max_message_bytes`` that arrived.

    Raises:
        PubSubError: an address or an option can't be used.
        MissingPackageError: the library is not installed.
        ForkedError: nng was loaded before this process was forked.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        channels: Sequence[bytes] = (b"",),
        library: Library = "zeromq",
        queue_size: int = QUEUE_SIZE,
        max_channels: int = MAX_CHANNELS,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        curve: Curve | None = None,
    ) -> None:
        check_range("max_channels", max_channels, 1, 2**31 - 1)
        for channel in channels:
            check_channel(channel)
        options = Options(queue_size, max_message_bytes=max_message_bytes, curve=curve)
        self.sequences = Received(max_channels)
        self._max_message_bytes = max_message_bytes
        self.malformed = self.oversize = 0
        listed = _listed(addresses)
        if _is_zeromq(library):
            self._socket = ZeroMqSocket("SUB", listed, options, bind=False, prefixes=channels)
        else:
            self._socket = NngSocket("Sub0", listed, options, channels)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return messages and losses, in order; wait up to so long for something.

        Raises:
            PubSubError: the subscriber is closed.
            ForkedError: the process was forked after the subscriber was opened.
        """
        end = time.monotonic() + timeout_s
        while True:
            events: list[Event] = []
            for frames in self._socket.receive(max(end - time.monotonic(), 0.0)):
                try:
                    channel, header, payload = decode_frames(frames)
                except FrameError:
                    self.malformed += 1
                    continue
                if len(payload) > self._max_message_bytes:
                    self.oversize += 1
                    continue
                events += self.sequences.take(channel, header, payload)
            if events or time.monotonic() >= end:
                return events

    def __iter__(self) -> Iterator[Event]:
        """Yield messages and losses, without an end."""
        while True:
            yield from self.poll(1.0)


class Pusher(_Sender):
    """Hands each message to one of several pullers, in turn. ZeroMQ only; use it in one thread.

    The message is one frame with the payload. What a puller has in its queue is gone if it ends.

    Args:
        address: ``inproc://NAME``, ``ipc://PATH`` or ``tcp://HOST:PORT``; port 0 is a free one.
        bind: whether to bind the address; otherwise the pullers do.
        queue_size: messages that wait for each puller.
        wait_s: seconds to wait for room in a queue; 0 drops the message immediately.
        linger_s: seconds that ``close`` leaves for what is queued.
        max_message_bytes: bytes of a payload at most.
        curve: encryption.

    Attributes:
        pushed: messages that the library took.
        dropped: messages for which there was no puller with room.

    Raises:
        PubSubError: an address or an option can't be used.
        MissingPackageError: pyzmq is not installed.
    """

    def __init__(
        self,
        address: str,
        *,
        bind: bool = True,
        queue_size: int = QUEUE_SIZE,
        wait_s: float = 5.0,
        linger_s: float = 1.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        curve: Curve | None = None,
    ) -> None:
        self._options = Options(queue_size, wait_s, linger_s, max_message_bytes, curve)
        self._socket = ZeroMqSocket("PUSH", [address], self._options, bind=bind)
        self.pushed = self.dropped = 0

    def push(self, payload: bytes) -> bool:
        """Hand on a message; return False if it was dropped because no puller has room.

        Raises:
            PubSubError: the payload is too large, or the pusher is closed.
            ForkedError: the process was forked after the pusher was opened.
        """
        self._options.check_size(payload)
        if self._socket.send((payload,)):
            self.pushed += 1
            return True
        self.dropped += 1
        return False


class Puller(_Endpoint):
    """Receives its share of the messages of pushers. ZeroMQ only; use it in one thread.

    Args:
        addresses: one address or several.
        bind: whether to bind them; otherwise the pushers do.
        queue_size: messages that wait for this puller, of each pusher.
        max_message_bytes: bytes of a payload at most. A larger message is left out. If the puller
            binds, the connection ends before it arrives.
        curve: encryption.

    Attributes:
        pulled: messages that were received.
        malformed: messages that are too large or have several frames. They are left out.

    Raises:
        PubSubError: an address or an option can't be used.
        MissingPackageError: pyzmq is not installed.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        bind: bool = False,
        queue_size: int = QUEUE_SIZE,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        curve: Curve | None = None,
    ) -> None:
        options = Options(queue_size, max_message_bytes=max_message_bytes, curve=curve)
        self._socket = ZeroMqSocket("PULL", _listed(addresses), options, bind=bind)
        self._max_message_bytes = max_message_bytes
        self.pulled = self.malformed = 0

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses, as bound or connected."""
        return self._socket.addresses

    def poll(self, timeout_s: float) -> list[bytes]:
        """Return payloads; wait up to so long for one.

        Raises:
            PubSubError: the puller is closed.
            ForkedError: the process was forked after the puller was opened.
        """
        found: list[bytes] = []
        for frames in self._socket.receive(timeout_s):
            if len(frames) == 1 and len(frames[0]) <= self._max_message_bytes:
                found += frames
            else:
                self.malformed += 1
        self.pulled += len(found)
        return found


def _is_zeromq(library: str) -> bool:
    if library not in ("zeromq", "nng"):
        raise PubSubError(f"unknown library {library!r}", hint="Use 'zeromq' or 'nng'.")
    return library == "zeromq"


def _listed(addresses: str | Sequence[str]) -> list[str]:
    listed = [addresses] if isinstance(addresses, str) else list(addresses)
    if not listed:
        raise PubSubError("no address", hint="Name at least one address.")
    return listed
