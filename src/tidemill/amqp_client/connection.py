"""A small blocking client of AMQP 0-9-1: one connection, one channel, one call at a time.

It does what commands and pages need and nothing else. It uses the broker's codec, so that they need
no other library. This module must not print.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from tidemill.amqp_client.errors import (
    AmqpConflictError,
    AmqpNotFoundError,
    AmqpUrlError,
    QueueRefusedError,
)
from tidemill.errors import TidemillError, UnreachableError
from tidemill.protocols.amqp.codec import methods, properties
from tidemill.protocols.amqp.codec.methods import Method
from tidemill.protocols.amqp.codec.tables import encode_table, short_string

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
FRAME_MAX = 131_072
CHANNEL = 1
CONSUMER = "command"
MANAGEMENT_KEY = "tidemill.management"
REPLY_TO = "amq.rabbitmq.reply-to"

_FRAME = struct.Struct(">BHI")
_HEADER = struct.Struct(">HHQ")
_BASIC = 60


class Message(NamedTuple):
    """A message that the broker has delivered or returned."""

    body: bytes
    properties: properties.Properties
    exchange: str
    routing_key: str
    delivery_tag: int
    redelivered: bool
    returned: str
    """The broker's reason if it returned the message; empty for a delivery."""


class AmqpClient:
    """One connection with one channel.

    Args:
        url: ``amqp://user:password@host:port/vhost``; ``amqps`` for TLS.
        ca_file: PEM certificates that are trusted for TLS; None: those of the system.

    Raises:
        AmqpUrlError: the URL is invalid.
        UnreachableError: the broker can't be reached, or refuses the user.
    """

    def __init__(self, url: str, ca_file: str | None = None) -> None:
        self._url = _parsed(url)
        self._ca_file = ca_file
        self._in = bytearray()
        self._messages: deque[Message] = deque()
        self._returned: deque[Message] = deque()
        self._sock = self._connect()
        self._open()

    def close(self) -> None:
        """Close the connection. What was confirmed is on disk."""
        with contextlib.suppress(OSError):
            closing = methods.encode(0, "connection.close", reply_code=200, reply_text="bye")
            self._sock.sendall(closing)
        self._sock.close()

    def __enter__(self) -> AmqpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- calls -----------------------------------------------------------------------------------

    def call(self, name: str, **arguments: object) -> Method:
        """Send a method, and return the broker's answer.

        Raises:
            AmqpNotFoundError: what it names does not exist.
            AmqpConflictError: it can't be done with what exists.
            QueueRefusedError: the broker refuses.
            UnreachableError: the connection broke, or there is no answer.
        """
        self._say(CHANNEL, name, **arguments)
        return self._until(f"{name}-ok", "basic.get-empty")

    def publish(
        self, exchange: str, key: str, body: bytes, *, mandatory: bool = True, data: bytes = b""
    ) -> Message | None:
        """Publish a message and wait until it is on disk. ``confirm.select`` comes before.

        ``data`` is encoded properties.

        Returns:
            The message if no queue took it and ``mandatory`` is set, else None.

        Raises:
            QueueRefusedError: the queue is full and refuses, or the broker could not write it.
        """
        self._returned.clear()
        self._send_message(exchange, key, body, mandatory=mandatory, data=data)
        if self._until("basic.ack", "basic.nack").name == "basic.nack":
            raise QueueRefusedError(
                "the broker refused the message",
                hint="The queue is full and has x-overflow=reject-publish, or the disk is full.",
            )
        return self._returned.popleft() if self._returned else None

    def get(self, queue: str, *, no_ack: bool = False) -> Message | None:
        """Return the next message of a queue; None if it is empty."""
        answer = self.call("basic.get", queue=queue, no_ack=no_ack)
        return None if answer.name == "basic.get-empty" else self._message(answer)

    def consume(self, queue: str, *, prefetch: int, no_ack: bool = False) -> None:
        """Begin to consume; ``next_message`` returns the messages."""
        self.call("basic.qos", prefetch_count=prefetch)
        self.call("basic.consume", queue=queue, no_ack=no_ack, consumer_tag=CONSUMER)

    def stop_consuming(self) -> None:
        """Get no more messages. Those that were delivered can still be settled."""
        self.call("basic.cancel", consumer_tag=CONSUMER)

    def next_message(self, timeout_s: float) -> Message | None:
        """Return the next delivered message; None after the timeout."""
        if not self._messages:
            self._sock.settimeout(timeout_s)
            try:
                self._until("", wanted=1)
            except TimeoutError:
                return None
            finally:
                self._sock.settimeout(ANSWER_SECONDS)
        return self._messages.popleft()

    def settle(self, tag: int, *, requeue: bool | None = None) -> None:
        """Acknowledge a message; with ``requeue``, return it to the queue (True) or reject it."""
        if requeue is None:
            self._say(CHANNEL, "basic.ack", delivery_tag=tag)
        else:
            self._say(CHANNEL, "basic.nack", delivery_tag=tag, requeue=requeue)

    def ask(self, question: Mapping[str, object]) -> Any:
        """Ask the broker about its queues, or to close a connection; return the answer, as JSON.

        Raises:
            AmqpNotFoundError: the connection does not exist.
            QueueRefusedError: the broker refuses.
        """
        self.call("basic.consume", queue=REPLY_TO, no_ack=True, consumer_tag="answers")
        data = (1 << 9).to_bytes(2, "big") + short_string(REPLY_TO)  # reply_to
        body = json.dumps(question).encode()
        self._send_message("", MANAGEMENT_KEY, body, mandatory=True, data=data)
        self._until("", wanted=1)
        message = self._messages.popleft()
        self.call("basic.cancel", consumer_tag="answers")
        if message.returned:
            raise QueueRefusedError(
                "the broker does not tell about its queues",
                hint="This command needs tidemill's own broker.",
            )
        answer = json.loads(message.body)
        if "error" in answer:
            kind = AmqpNotFoundError if answer.get("kind") == "not_found" else QueueRefusedError
            raise kind(str(answer["error"]))
        return answer["result"]

    # --- the connection --------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        url = self._url
        try:
            sock = socket.create_connection((url.host, url.port), CONNECT_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.tls:
                context = ssl.create_default_context(cafile=self._ca_file)
                sock = context.wrap_socket(sock, server_hostname=url.host)
        except (OSError, ssl.SSLError) as error:
            plain = "" if isinstance(error, ssl.SSLError) else error.strerror or ""
            reason = plain.lower() or str(error)
            raise UnreachableError(
                f"no broker answers at {url.host}:{url.port} ({reason})",
                hint="Start one: tidemill dev. Or give the address: --amqp-url amqp://HOST:PORT/",
            ) from error
        sock.settimeout(ANSWER_SECONDS)
        return sock

    def _open(self) -> None:
        url = self._url
        self._send(b"AMQP\x00\x00\x09\x01")
        self._until("connection.start")
        login = f"\0{url.user}\0{url.password}".encode()
        about = {"product": "tidemill", "capabilities": {"consumer_cancel_notify": True}}
        self._say(
            0,
            "connection.start-ok",
            client_properties=about,
            mechanism="PLAIN",
            response=login,
            locale="en_US",
        )
        tune = self._until("connection.tune")
        self._frame_max = min(tune.number("frame_max") or FRAME_MAX, FRAME_MAX)
        # Without heartbeats: a command sends nothing while it waits for input.
        channels = tune.number("channel_max")
        limits = {"channel_max": channels, "frame_max": self._frame_max, "heartbeat": 0}
        self._say(0, "connection.tune-ok", **limits)
        self._say(0, "connection.open", virtual_host=url.vhost)
        self._until("connection.open-ok")
        self._say(CHANNEL, "channel.open")
        self._until("channel.open-ok")

    def _say(self, channel: int, name: str, **arguments: object) -> None:
        self._send(methods.encode(channel, name, **arguments))

    def _send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._broken(error) from error

    def _send_message(
        self, exchange: str, key: str, body: bytes, *, mandatory: bool, data: bytes
    ) -> None:
        place = {"exchange": exchange, "routing_key": key, "mandatory": mandatory}
        header = _HEADER.pack(_BASIC, 0, len(body)) + (data or properties.NONE)
        parts = [methods.encode(CHANNEL, "basic.publish", **place), _frame(2, header)]
        size = self._frame_max - 8
        parts += [_frame(3, body[at : at + size]) for at in range(0, len(body), size)]
        self._send(b"".join(parts))

    def _until(self, *names: str, wanted: int = 0) -> Method:
        """Read until one of these methods, or until ``wanted`` messages have arrived."""
        while True:
            if wanted and len(self._messages) >= wanted:
                return Method("", {})
            payload = self._frame_of(1)
            method = methods.decode(payload)
            if method.name == "basic.deliver":
                self._messages.append(self._message(method))
            elif method.name == "basic.return":
                message = self._message(method)
                (self._messages if wanted else self._returned).append(message)
            elif method.name in ("channel.close", "connection.close"):
                raise self._refusal(method)
            elif method.name == "basic.cancel":
                raise AmqpNotFoundError("the queue was deleted")
            elif method.name in names:
                return method

    def _message(self, method: Method) -> Message:
        """Read the content that follows a method."""
        header = self._frame_of(2)
        size = _HEADER.unpack_from(header)[2]
        body = bytearray()
        while len(body) < size:
            body += self._frame_of(3)
        return Message(
            bytes(body),
            properties.parse(header[_HEADER.size :]),
            method.text("exchange"),
            method.text("routing_key"),
            int(str(method.arguments.get("delivery_tag", 0))),
            bool(method.arguments.get("redelivered", False)),
            str(method.arguments.get("reply_text", "")),
        )

    def _frame_of(self, kind: int) -> bytes:
        """Return the payload of the next frame of a kind; heartbeats are skipped."""
        while True:
            found, _, size = _FRAME.unpack(self._take(_FRAME.size))
            payload = self._take(size + 1)[:-1]
            if found == kind:
                return payload

    def _take(self, count: int) -> bytes:
        while len(self._in) < count:
            try:
                data = self._sock.recv(65536)
            except TimeoutError:  # for next_message
                raise
            except OSError as error:
                raise self._broken(error) from error
            if not data:
                raise self._broken(None)
            self._in += data
        taken = bytes(self._in[:count])
        del self._in[:count]
        return taken

    def _broken(self, error: OSError | None) -> UnreachableError:
        why = str(error) if error is not None else "it closed the connection"
        return UnreachableError(
            f"the broker at {self._url.host}:{self._url.port} does not answer: {why}",
            hint="Is the port that of AMQP, and are user and password right?",
        )

    def _refusal(self, method: Method) -> TidemillError:
        code, text = method.number("reply_code"), method.text("reply_text")
        if method.name == "channel.close":
            self._say(CHANNEL, "channel.close-ok")
        _, _, said = text.partition(" - ")
        match code:
            case 404:
                kind = "exchange" if said.startswith("no exchange") else "queue"
                return AmqpNotFoundError(said or text, hint=f"See: tidemill {kind} list")
            case 405 | 406:
                return AmqpConflictError(said or text)
            case 403:
                return QueueRefusedError(said or text)
        return QueueRefusedError(f"{text} (code {code})")


class _Url(NamedTuple):
    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool


def _parsed(url: str) -> _Url:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text can have a part of the password
        host = None
    if not host or parts.scheme not in ("amqp", "amqps"):
        raise AmqpUrlError(
            "invalid AMQP URL (not shown, because it can contain a password)",
            hint="Use amqp://USER:PASSWORD@HOST:PORT/, or amqps://. In a password, write / as %2F, "
            "@ as %40 and % as %25.",
        )
    tls = parts.scheme == "amqps"
    return _Url(
        host,
        port if port is not None else (5671 if tls else 5672),
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        unquote(parts.path[1:]) or "/",
        tls,
    )


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, CHANNEL, len(payload)) + payload + b"\xce"


def with_headers(headers: Mapping[str, object]) -> bytes:
    """Return encoded properties: persistent, with these application headers."""
    flags = (1 << 13 if headers else 0) | 1 << 12
    table = encode_table(headers) if headers else b""
    return flags.to_bytes(2, "big") + table + b"\x02"
