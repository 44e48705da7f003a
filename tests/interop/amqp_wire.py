"""A small AMQP client over a socket that shows each frame, in order, and can send any.

pamqp encodes and decodes. Knows no broker.
"""

from __future__ import annotations

import socket
import time
from typing import Any, NamedTuple, Self

from pamqp import body, commands, encode, frame, header, heartbeat

DEADLINE_S = 20.0
QUIET_S = 0.3
"""How long a broker is listened to that is expected to say nothing."""

_TABLE = encode.field_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
LOGIN = {"PLAIN": "\x00guest\x00guest", "AMQPLAIN": _TABLE.decode()}
"""The answer of each mechanism."""


class Message(NamedTuple):
    """A message that the broker sent: its method, properties and body."""

    method: Any
    properties: commands.Basic.Properties
    body: bytes


class WireClient:
    """One open connection.

    Args:
        port: the broker's, on loopback.
        frame_max: the largest frame that the client agrees to, in bytes.
        heartbeat_s: the interval of heartbeats; 0 for none.
        mechanism: how the client logs in: PLAIN or AMQPLAIN.
        virtual_host: the one to open; None: the caller opens it.
    """

    def __init__(
        self,
        port: int,
        *,
        frame_max: int = 131_072,
        heartbeat_s: int = 0,
        mechanism: str = "PLAIN",
        virtual_host: str | None = "/",
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        # A frame does not wait for the acknowledgement of the one before: 40 ms each.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        assert self.read(DEADLINE_S)[1].name == "Connection.Start"
        capabilities: Any = {
            "basic.nack": True,
            "connection.blocked": True,
            "consumer_cancel_notify": True,
            "exchange_exchange_bindings": True,
            "publisher_confirms": True,
        }
        answer = commands.Connection.StartOk(
            {"capabilities": capabilities, "product": "test"}, mechanism, LOGIN[mechanism]
        )
        self.tune = self.ask(0, answer)
        assert self.tune.name == "Connection.Tune", self.tune
        self.send(0, commands.Connection.TuneOk(100, frame_max, heartbeat_s))
        if virtual_host is not None:
            opened = self.ask(0, commands.Connection.Open(virtual_host))
            assert opened.name == "Connection.OpenOk"

    def open(self, *channels: int) -> Self:
        """Open channels."""
        for channel in channels or (1,):
            assert self.ask(channel, commands.Channel.Open()).name == "Channel.OpenOk"
        return self

    def send(self, channel: int, sent: Any) -> None:
        """Send a frame."""
        self.socket.sendall(frame.marshal(sent, channel))

    def read(self, seconds: float = DEADLINE_S) -> tuple[int, Any]:
        """Return the channel and the content of the next frame that is not a heartbeat.

        Raises:
            TimeoutError: none came in time.
            EOFError: the broker closed the connection.
        """
        end = time.monotonic() + seconds
        while True:
            used = 0
            if self._received:
                used, channel, got = frame.unmarshal(self._received)
            if used:
                self._received = self._received[used:]
                if not isinstance(got, heartbeat.Heartbeat):
                    return channel, got
                continue
            self.socket.settimeout(max(end - time.monotonic(), 0.001))
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError("the broker closed the connection")
            self._received += data

    def ask(self, channel: int, sent: Any) -> Any:
        """Send a method and return the next frame of the channel."""
        self.send(channel, sent)
        return self.next(channel)

    def next(self, channel: int, seconds: float = DEADLINE_S) -> Any:
        """Return the next frame of a channel; others are dropped."""
        while True:
            number, got = self.read(seconds)
            if number == channel or isinstance(got, commands.Connection.Close):
                return got

    def message(self, channel: int = 1, seconds: float = DEADLINE_S) -> Message:
        """Return the next message of a channel."""
        method = self.next(channel, seconds)
        assert method.name in ("Basic.Deliver", "Basic.GetOk", "Basic.Return"), method
        return self._message(channel, method)

    def _message(self, channel: int, method: Any) -> Message:
        """Return the message whose method has been read."""
        head = self.next(channel)
        assert isinstance(head, header.ContentHeader)
        data = b""
        while len(data) < head.body_size:
            part = self.next(channel)
            assert isinstance(part, body.ContentBody)
            data += part.value
        return Message(method, head.properties, data)

    def is_quiet(self, seconds: float = QUIET_S) -> bool:
        """Return whether nothing comes for a while."""
        try:
            self.read(seconds)
        except TimeoutError:
            return True
        return False

    # --- what tests do often ---------------------------------------------------------------------

    def declare(self, queue: str, **options: Any) -> Any:
        """Declare a queue on channel 1; return the answer."""
        return self.ask(1, commands.Queue.Declare(queue=queue, **options))

    def publish(
        self,
        exchange: str,
        key: str,
        data: bytes = b"",
        *,
        channel: int = 1,
        mandatory: bool = False,
        **properties: Any,
    ) -> None:
        """Publish a message."""
        self.send(channel, commands.Basic.Publish(0, exchange, key, mandatory))
        about = commands.Basic.Properties(**properties)
        self.send(channel, header.ContentHeader(0, len(data), about))
        if data:
            self.send(channel, body.ContentBody(data))

    def get(self, queue: str, *, channel: int = 1, no_ack: bool = True) -> Message | None:
        """Take a message from a queue; None if it has none."""
        self.send(channel, commands.Basic.Get(0, queue, no_ack))
        got = self.next(channel)
        if isinstance(got, commands.Basic.GetEmpty):
            return None
        assert isinstance(got, commands.Basic.GetOk), got
        return self._message(channel, got)

    def wait_for(self, queue: str, ready: int) -> None:
        """Wait until so many messages of a queue are ready.

        Raises:
            AssertionError: they are not, in time.
        """
        end = time.monotonic() + DEADLINE_S
        while (count := self.declare(queue, passive=True).message_count) != ready:
            assert time.monotonic() < end, f"{queue} has {count} messages and not {ready}"

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
