"""The beginning of a connection: header, start, login, tune, open.

Sans-IO: takes bytes and methods, and returns what to send. What is negotiated is in ``Negotiated``.

Source: amqp0-9-1.pdf, section 4.2.2 (version negotiation), and RabbitMQ's ``rabbit_reader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill import __version__
from tidemill.protocols.amqp.codec.frames import FRAME_MAX, FRAME_MIN
from tidemill.protocols.amqp.codec.methods import Method, encode
from tidemill.protocols.amqp.error_codes import VHOST
from tidemill.protocols.amqp.errors import ConnectionClosedError
from tidemill.protocols.amqp.users import Users

HEADER = b"AMQP\x00\x00\x09\x01"
CHANNEL_MAX = 2047
HEARTBEAT_SECONDS = 60
COMPATIBLE_VERSION = "3.13.0"
"""The version of RabbitMQ whose meaning of basic.qos holds. kombu reads it: from 4.0 on, which has
no limit of a channel, Celery does not raise the limit for tasks that wait for their time."""

CAPABILITIES = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)

SHOWN = ("connection_name", "product", "version", "platform")
"""The properties of a client that listings show."""
_LONGEST_SHOWN = 128

_STEPS = {
    "connection.start-ok": "start",
    "connection.tune-ok": "tune",
    "connection.open": "open",
}


class ClosedWithoutWordError(ConnectionClosedError):
    """The login failed, and the client does not expect a method that says so."""


@dataclass(slots=True)
class Negotiated:
    """The limits and abilities that client and broker agreed on."""

    user: str = ""
    channel_max: int = CHANNEL_MAX
    frame_max: int = FRAME_MAX
    heartbeat: int = 0
    """Seconds; 0 for none."""
    mechanism: str = ""
    client: dict[str, str] = field(default_factory=dict)
    """What the client says about itself, for listings: the texts that ``SHOWN`` names, cut."""
    cancel_notify: bool = False
    knows_blocked: bool = False


class Handshake:
    """The steps until a connection is open.

    Args:
        users: checks the login.
        peer: ``host:port`` of the client.
        host: its address.
    """

    def __init__(self, users: Users, peer: str, host: str) -> None:
        self._users = users
        self._peer, self._host = peer, host
        self._expected = "header"
        self.result = Negotiated()

    @property
    def is_open(self) -> bool:
        """Whether the client has opened the virtual host."""
        return self._expected == "done"

    def start(self, header: bytes) -> bytes | None:
        """Take the protocol header; return the first method, or None if it is another protocol."""
        if header != HEADER:
            return None
        self._expected = "start"
        return encode(
            0,
            "connection.start",
            version_major=0,
            version_minor=9,
            server_properties=server_properties(),
            mechanisms=" ".join(self._users.mechanisms).encode(),
            locales=b"en_US",
        )

    @property
    def expects_login(self) -> bool:
        """Whether the next method is that of the login: ``log_in`` takes it."""
        return self._expected == "start"

    def handle(self, method: Method) -> bytes:
        """Take a method after the login, and return what to send."""
        self._check_step(method)
        if self._expected == "tune":
            return self._tune(method)
        vhost = method.text("virtual_host")
        if vhost != VHOST:
            raise ConnectionClosedError(530, f"vhost {vhost} not found")
        self._expected = "done"
        return encode(0, "connection.open-ok")

    def _check_step(self, method: Method) -> None:
        if _STEPS.get(method.name) != self._expected:
            raise ConnectionClosedError(503, f"unexpected method {method.name} in the handshake")

    async def log_in(self, method: Method, certificate: Mapping[str, Any] | None) -> bytes:
        """Take connection.start-ok, and return what to send. No other method comes meanwhile.

        Args:
            certificate: what the client has shown within TLS.
        """
        self._check_step(method)
        mechanism = method.text("mechanism")
        about = method.table("client_properties")
        capabilities = about.get("capabilities")
        known = capabilities if isinstance(capabilities, dict) else {}
        if mechanism not in self._users.mechanisms:
            use = " or ".join(self._users.mechanisms)
            raise ConnectionClosedError(
                530, f"unsupported authentication mechanism '{mechanism}': use {use}"
            )
        response = method.data("response")
        user = await self._users.login(mechanism, response, self._peer, self._host, certificate)
        if user is None:
            kind = ConnectionClosedError
            if not known.get("authentication_failure_close"):
                kind = ClosedWithoutWordError
            raise kind(
                403,
                f"Login was refused using authentication mechanism {mechanism}. For details see "
                "the broker logfile.",
            )
        self.result.user, self.result.mechanism = user, mechanism
        self.result.client = {
            name: text[:_LONGEST_SHOWN]
            for name in SHOWN
            if isinstance(text := about.get(name), str) and text
        }
        self.result.cancel_notify = bool(known.get("consumer_cancel_notify"))
        self.result.knows_blocked = bool(known.get("connection.blocked"))
        self._expected = "tune"
        return encode(
            0,
            "connection.tune",
            channel_max=CHANNEL_MAX,
            frame_max=FRAME_MAX,
            heartbeat=HEARTBEAT_SECONDS,
        )

    def _tune(self, method: Method) -> bytes:
        self.result.channel_max = _agreed("channel_max", method, 1, CHANNEL_MAX)
        self.result.frame_max = _agreed("frame_max", method, FRAME_MIN, FRAME_MAX)
        self.result.heartbeat = method.number("heartbeat")
        self._expected = "open"
        return b""


def _agreed(name: str, method: Method, lowest: int, highest: int) -> int:
    value = method.number(name)
    if value == 0 or value > highest:
        shown = "0 (no limit)" if value == 0 else value
        raise ConnectionClosedError(
            530, f"negotiated {name} = {shown} is higher than the maximum allowed value ({highest})"
        )
    if value < lowest:
        raise ConnectionClosedError(
            530, f"negotiated {name} = {value} is lower than the minimum allowed value ({lowest})"
        )
    return value


def server_properties() -> dict[str, object]:
    """Return what the broker says about itself."""
    return {
        "capabilities": dict.fromkeys(CAPABILITIES, True),
        "cluster_name": "tidemill",
        "copyright": "The tidemill maintainers",
        "information": f"tidemill {__version__}, licensed under Apache-2.0",
        "platform": "Python",
        # kombu compares it: for another product, Celery expects that basic.qos without `global`
        # changes running consumers, as the specification says and RabbitMQ does not.
        "product": "RabbitMQ",
        "version": COMPATIBLE_VERSION,
    }
