"""The sockets of a StatsD listener: UDP, TCP, and Unix sockets for datagrams and streams.

Datagrams are received by a thread in C code, which does not hold Python's lock. Streams are few and
slow in comparison: the event loop has them. Must not know: what happens with the results.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidemill import system
from tidemill.direct.statsd.aggregator import Aggregator
from tidemill.direct.statsd.errors import StatsdError

_POLL_MS = 100
PACKET_LIMIT = 1 << 16
"""Most bytes of a packet in a stream, or of a line."""
RECEIVE_BYTES = 8 << 20
"""The receive buffer of datagrams that is asked for."""
CONNECTIONS = 1000
"""Most connections of the stream sockets of a listener."""


@dataclass(slots=True)
class Traffic:
    """Counts of a listener's sockets since its start.

    Attributes:
        packets: Received datagrams.
        drops: Datagrams that the kernel has dropped because they came too fast.
        connections: Open connections of streams.
        refused: Connections above the limit, which were closed.
        broken: Connections that were closed because they sent an absurd length.
    """

    packets: int = 0
    drops: int = 0
    connections: int = 0
    refused: int = 0
    broken: int = 0


class Listener:
    """Feeds an aggregator from sockets.

    Args:
        aggregator: Takes the packets.
        addresses: ``udp://HOST:PORT``, ``tcp://HOST:PORT``, ``unixgram:///PATH`` or
            ``unixstream:///PATH``. Port 0 is a free one.
        receive_bytes: The receive buffer of datagrams. The kernel gives what it allows
            (``net.core.rmem_max``).
        connections: Most connections of the stream sockets together.

    Attributes:
        addresses: The addresses as bound, after ``start``.
        receive_bytes: The smallest receive buffer that the kernel has given.
        traffic: What was counted.

    Raises:
        StatsdError: An address is malformed.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        addresses: Sequence[str],
        receive_bytes: int = RECEIVE_BYTES,
        connections: int = CONNECTIONS,
    ) -> None:
        self._aggregator = aggregator
        self._wanted = [_parse(each) for each in addresses]
        self.addresses: list[str] = []
        self.receive_bytes = receive_bytes
        self._connections = connections
        self.traffic = Traffic()
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []
        self._servers: list[asyncio.Server] = []
        self._transports: set[asyncio.BaseTransport] = set()
        self._paths: list[Path] = []
        self.failure: OSError | None = None

    async def start(self) -> None:
        """Bind the sockets, and receive.

        Raises:
            StatsdError: An address can't be bound.
        """
        try:
            for scheme, host, port in self._wanted:
                await self._open(scheme, host, port)
        except OSError as error:
            await self.close()
            raise StatsdError(
                f"can't listen at {_address(scheme, host, port)}: {error.strerror or error}",
                hint="Another program may have the address: choose another port or path.",
            ) from error

    async def close(self) -> None:
        """Receive no more. What was received is in the aggregator."""
        self._ends.set()
        for server in self._servers:
            server.close()
        for transport in list(self._transports):
            transport.close()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths.clear()

    async def _open(self, scheme: str, host: str, port: int) -> None:
        if scheme in ("udp", "unixgram"):
            receiver = datagram_socket(scheme, host, port)
            self._bound(scheme, receiver.getsockname(), host)
            given = system.receive_buffer(receiver.fileno(), self.receive_bytes)
            self.receive_bytes = min(self.receive_bytes, given)
            thread = threading.Thread(
                target=self._receive, args=(receiver,), name="statsd", daemon=True
            )
            thread.start()
            self._threads.append(thread)
            return
        kind: Callable[[Listener, Aggregator], asyncio.Protocol]
        kind = _Frames if scheme == "unixstream" else _Lines
        loop = asyncio.get_running_loop()
        if scheme == "tcp":
            server = await loop.create_server(lambda: kind(self, self._aggregator), host, port)
        else:
            _remove_stale(host)
            server = await loop.create_unix_server(lambda: kind(self, self._aggregator), host)
        self._servers.append(server)
        self._bound(scheme, server.sockets[0].getsockname(), host)

    def _bound(self, scheme: str, bound: tuple[str, int] | str, host: str) -> None:
        if scheme.startswith("unix"):
            self._paths.append(Path(host))
            self.addresses.append(_address(scheme, host, 0))
        else:
            self.addresses.append(_address(scheme, str(bound[0]), int(bound[1])))

    def _receive(self, receiver: socket.socket) -> None:
        """Receive datagrams until the end; it runs on a thread of its own."""
        before = 0
        with receiver:
            while not self._ends.is_set():
                try:
                    packets, drops = self._aggregator.table.receive(receiver.fileno(), _POLL_MS)
                except OSError as error:
                    self.failure = error
                    return
                self.traffic.packets += packets
                if drops is not None:
                    self.traffic.drops += (drops - before) % (1 << 32)
                    before = drops

    def opened(self, transport: asyncio.BaseTransport) -> bool:
        """Note a connection; return whether there are not too many."""
        if len(self._transports) >= self._connections or self._ends.is_set():
            self.traffic.refused += 1
            return False
        self._transports.add(transport)
        self.traffic.connections = len(self._transports)
        return True

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Note that a connection has ended."""
        self._transports.discard(transport)
        self.traffic.connections = len(self._transports)


class _Stream(asyncio.Protocol):
    """A connection, whose bytes are cut into packets."""

    def __init__(self, listener: Listener, aggregator: Aggregator) -> None:
        self._listener = listener
        self._aggregator = aggregator
        self._rest = bytearray()
        self._transport: asyncio.BaseTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if not self._listener.opened(transport):
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self._transport)


class _Lines(_Stream):
    """Lines, each with its end. The last one needs none."""

    _skips = False

    def data_received(self, data: bytes) -> None:
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if end:
            start = self._rest.find(b"\n") + 1 if self._skips else 0
            self._skips = False
            self._feed(bytes(self._rest[start:end]))
            del self._rest[:end]
        if len(self._rest) > PACKET_LIMIT:
            if not self._skips:
                self._aggregator.cut(bytes(self._rest))
            self._skips = True
            self._rest.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest and not self._skips:
            self._feed(bytes(self._rest))
        super().connection_lost(exc)

    def _feed(self, lines: bytes) -> None:
        self._aggregator.feed(lines)


class _Frames(_Stream):
    """Packets of DogStatsD, each behind its length: four bytes, little-endian."""

    def data_received(self, data: bytes) -> None:
        self._rest += data
        at = 0
        while len(self._rest) >= at + 4:
            size = int.from_bytes(self._rest[at : at + 4], "little")
            if size > PACKET_LIMIT:
                self._listener.traffic.broken += 1
                self._transport.close()
                self._rest.clear()
                return
            if len(self._rest) < at + 4 + size:
                break
            self._aggregator.feed(bytes(self._rest[at + 4 : at + 4 + size]))
            at += 4 + size
        del self._rest[:at]


def _parse(address: str) -> tuple[str, str, int]:
    """Return scheme, host or path, and port."""
    parts = urlsplit(address)
    hint = "Write udp://127.0.0.1:8125, tcp://…, unixgram:///PATH or unixstream:///PATH."
    try:
        port = parts.port
    except ValueError as error:
        raise StatsdError(f"the port of {address} is not from 0 to 65535", hint=hint) from error
    if parts.scheme in ("udp", "tcp") and parts.hostname and port is not None and not parts.path:
        return parts.scheme, parts.hostname, port
    is_unix = parts.scheme in ("unixgram", "unixstream") and not parts.netloc
    if is_unix and 1 < len(os.fsencode(parts.path)) < 108:
        return parts.scheme, parts.path, 0
    raise StatsdError(f"{address} is not an address of a StatsD listener", hint=hint)


def _address(scheme: str, host: str, port: int) -> str:
    if scheme.startswith("unix"):
        return f"{scheme}://{host}"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def datagram_socket(scheme: str, host: str, port: int) -> socket.socket:
    """Return a bound socket that tells how many packets the kernel has dropped.

    Raises:
        OSError: It can't be bound.
    """
    if scheme == "unixgram":
        _remove_stale(host)
        family, place = socket.AF_UNIX, host
        bound: tuple[str, int] | str = place
    else:
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        bound = (str(found[0]), int(found[1]))
    receiver = socket.socket(family, socket.SOCK_DGRAM)
    try:
        receiver.bind(bound)
        system.report_drops(receiver.fileno())
    except OSError:
        receiver.close()
        raise
    return receiver


def _remove_stale(path: str) -> None:
    """Remove a socket that has no listener any more. Another file stays."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            except OSError:
                return  # a stream socket that is open, or no access: binding says what is wrong
