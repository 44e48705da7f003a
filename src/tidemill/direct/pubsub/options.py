"""Options of sockets, which both libraries understand. Must not know: either library."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.direct.pubsub.curve import Curve
from tidemill.direct.pubsub.errors import PubSubError

QUEUE_SIZE = 1000
MAX_MESSAGE_BYTES = 64 << 20
MAX_CHANNELS = 65_536
_LONGEST_WAIT_S = 86_400.0
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Options:
    """The queue, the limits and the keys of a socket.

    Attributes:
        queue_size: messages in the queue to or from each peer.
        wait_s: seconds that a sender waits for room in a full queue.
        linger_s: seconds that a closed sender still tries to send.
        max_message_bytes: bytes of a payload at most.
        curve: encryption, of ZeroMQ only.

    Raises:
        PubSubError: a value is out of range.
    """

    queue_size: int = QUEUE_SIZE
    wait_s: float = 0.0
    linger_s: float = 0.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    curve: Curve | None = None

    def __post_init__(self) -> None:
        check_range("queue_size", self.queue_size, 1, _MOST)
        check_range("wait_s", self.wait_s, 0, _LONGEST_WAIT_S)
        check_range("linger_s", self.linger_s, 0, _LONGEST_WAIT_S)
        check_range("max_message_bytes", self.max_message_bytes, 1, _MOST)

    def check_size(self, payload: bytes) -> None:
        """Check that a payload is within ``max_message_bytes``.

        Raises:
            PubSubError: it is larger.
        """
        if len(payload) > self.max_message_bytes:
            raise PubSubError(
                f"a message of {len(payload):,} bytes is larger than max_message_bytes",
                hint=f"Send at most {self.max_message_bytes:,} bytes, or raise it on both sides.",
            )


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Check an option. NaN is out of every range.

    Raises:
        PubSubError: the value is out of range.
    """
    if not least <= value <= most:
        raise PubSubError(
            f"invalid {name} {value}", hint=f"Use a number from {least:g} to {most:g}."
        )
