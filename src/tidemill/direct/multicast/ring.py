"""A publisher without a broker: it answers from its own last messages.

Must not know: a broker, what a message means.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence

from tidemill.direct.closing import Closing
from tidemill.direct.multicast.answers import LOOPBACK, Answers
from tidemill.direct.multicast.errors import MulticastError
from tidemill.direct.multicast.sockets import Address, Sender
from tidemill.direct.multicast.wire import session_of


class Ring:
    """The last messages of a session, bounded by their bytes.

    Args:
        session: the session's bytes.
        limit: most bytes of messages that are kept.
    """

    def __init__(self, session: bytes, limit: int) -> None:
        self.session = session
        self.first = self.end = 1
        self._limit = limit
        self._size = 0
        self._messages: deque[bytes] = deque()
        self._lock = threading.Lock()

    def add(self, message: bytes) -> int:
        """Keep a message, and return its sequence. The oldest ones make room for it."""
        with self._lock:
            self._messages.append(message)
            self._size += len(message)
            self.end += 1
            while self._size > self._limit and len(self._messages) > 1:
                self._size -= len(self._messages.popleft())
                self.first += 1
            return self.end - 1

    def read(self, sequence: int, count: int, size: int) -> Sequence[bytes]:
        """Return messages from a sequence on: one at least, up to ``size`` bytes."""
        found: list[bytes] = []
        used = 0
        with self._lock:
            start = sequence - self.first
            if start < 0:  # it has just made room for another one
                return found
            for at in range(start, min(start + count, len(self._messages))):
                used += len(self._messages[at])
                if found and used > size:
                    break
                found.append(self._messages[at])
        return found


class RingPublisher(Closing):
    """Publishes messages to a group, and answers requests for its last ones.

    Use it as a context manager.

    Args:
        group: address and port of the group.
        requests: address and port of the re-request server; port 0 is a free one.
        session: at most ten characters; by default a random one.
        keep_bytes: most bytes of messages that can be asked for.
        packet_size: bytes of a packet, unless one message is larger.
        members: networks whose requests are answered.
        interface: address of the network interface of the group.

    Raises:
        MulticastError: an address can't be used.
    """

    def __init__(
        self,
        group: Address,
        requests: Address = ("127.0.0.1", 0),
        *,
        session: str | None = None,
        keep_bytes: int = 64 << 20,
        packet_size: int = 1400,
        members: Sequence[str] = LOOPBACK,
        interface: str = "127.0.0.1",
    ) -> None:
        name = session or secrets.token_hex(5)
        self._ring = Ring(session_of(name), keep_bytes)
        self._lock = threading.Lock()
        self._is_closed = False
        self.answers = Answers(self._ring, members, packet_size=packet_size)
        self._sender = Sender(self._ring, self.answers, group, requests, interface, packet_size)

    @property
    def requests(self) -> Address:
        """The address of the re-request server, as bound."""
        return self._sender.requests

    def publish(self, *messages: bytes) -> int:
        """Send messages, in as few packets as they fit into; return the sequence of the last one.

        Raises:
            MulticastError: a message is larger than a datagram, or the publisher is closed.
        """
        with self._lock:
            if self._is_closed:
                raise MulticastError("the publisher is closed")
            for message in messages:
                self._sender.check(message)
            first = self._ring.end
            for message in messages:
                self._ring.add(message)
            self._sender.send(first, messages)
            return self._ring.end - 1

    def close(self, linger_s: float = 0.0) -> None:
        """Say that the session has ended, and close. Requests are answered for ``linger_s``."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        deadline = time.monotonic() + linger_s
        while True:
            self._sender.end()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, 0.1))
        self._sender.close()
