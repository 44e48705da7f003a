"""The sockets of multicast streams: a sender with its re-request server, and a receiver.

Must not know: where messages come from, what they mean.
"""

from __future__ import annotations

import ipaddress
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

from tidemill.direct.closing import Closing
from tidemill.direct.multicast.answers import Answers, Messages
from tidemill.direct.multicast.errors import MulticastError, PacketError
from tidemill.direct.multicast.receiver import Event, Receiver
from tidemill.direct.multicast.wire import (
    LARGEST_MESSAGE,
    LARGEST_PACKET,
    Packet,
    decode_packet,
    decode_request,
    encode_packet,
    encode_request,
    pack,
)

Address = tuple[str, int]
HEARTBEAT_S = 1.0
_RECEIVE_BYTES = 8 << 20
_LOOK_MS = 50


class Sender:
    """Sends packets to a group, heartbeats when nothing else is sent, and answers to requests.

    A thread of its own answers, so ``messages`` is used by two threads.

    Attributes:
        requests: the address of the re-request server, as bound.
        packets: packets for the group.
        unsent: those of them that the system did not take.
        malformed: requests that are not MoldUDP64.
        failure: what has ended the thread that answers; None while it works.

    Raises:
        MulticastError: an address can't be used.
    """

    def __init__(
        self,
        messages: Messages,
        answers: Answers,
        group: Address,
        requests: Address,
        interface: str,
        packet_size: int,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._messages = messages
        self._answers = answers
        self._group = group
        self._packet_size = packet_size
        self._heartbeat_s = heartbeat_s
        self._is_ended = False
        self.packets = self.unsent = self.malformed = 0
        self.failure: Exception | None = None
        self._socket = _group_sender(group, interface)
        try:
            self._server = _bound(requests)
        except MulticastError:
            self._socket.close()
            raise
        self.requests: Address = self._server.getsockname()[:2]
        self._sent_at = time.monotonic()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="multicast", daemon=True)
        self._thread.start()

    def check(self, message: bytes) -> None:
        """Check that a message fits into a datagram.

        Raises:
            MulticastError: it does not.
        """
        if len(message) > LARGEST_MESSAGE:
            raise MulticastError(
                f"a message of {len(message):,} bytes is larger than a datagram",
                hint=f"Split it into messages of at most {LARGEST_MESSAGE:,} bytes.",
            )

    def send(self, sequence: int, messages: Sequence[bytes]) -> None:
        """Send messages. What the network does not take is asked for by the receivers."""
        for data, _ in pack(self._messages.session, sequence, messages, self._packet_size):
            self._send(data)

    def end(self) -> None:
        """Say that the session has ended."""
        self._is_ended = True
        self._send_state()

    def close(self) -> None:
        """Answer no more, and close."""
        self._wake.close()
        self._thread.join()
        for each in (self._socket, self._server, self._woken):
            each.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendto(data, self._group)
        except OSError:  # no buffer or no route now: receivers ask for it
            self.unsent += 1
        self.packets += 1
        self._sent_at = time.monotonic()

    def _send_state(self) -> None:
        messages = self._messages
        packet = Packet(messages.session, messages.end, (), is_end=self._is_ended)
        self._send(encode_packet(packet))

    def _serve(self) -> None:
        """Answer requests, and send heartbeats; it runs on a thread of its own."""
        try:
            self._serve_until_woken()
        except Exception as error:
            self.failure = error

    def _serve_until_woken(self) -> None:
        while True:
            left = self._sent_at + self._heartbeat_s - time.monotonic()
            ready = _ready((self._server, self._woken), left)
            if self._woken in ready:
                return
            if self._server in ready:
                self._answer()
            elif time.monotonic() >= self._sent_at + self._heartbeat_s:
                self._send_state()

    def _answer(self) -> None:
        try:
            data, address = self._server.recvfrom(LARGEST_PACKET)
            request = decode_request(data)
        except PacketError:
            self.malformed += 1
            return
        except OSError:
            return  # an answer was refused by the host that it went to
        for datagram in self._answers.answer(request, address[0], _now_ms()):
            try:
                self._server.sendto(datagram, address)
            except OSError:
                return  # the receiver asks again


class MulticastReceiver(Closing):
    """Receives a stream, and asks for what is missing. Use as a context manager, in one thread.

    Args:
        group: address and port of the group.
        requests: addresses of re-request servers. They are asked in turn; none: a gap is lost after
            a time.
        receiver: puts messages in order; it has the position to resume from.
        interface: address of the network interface of the group.
        receive_bytes: receive buffer; the kernel gives up to ``net.core.rmem_max``.

    Attributes:
        receiver: its counts and position.
        malformed: packets that are not MoldUDP64.
        requested: requests that were sent.

    Raises:
        MulticastError: an address can't be used.
    """

    def __init__(
        self,
        group: Address,
        requests: Sequence[Address] = (),
        *,
        receiver: Receiver | None = None,
        interface: str = "127.0.0.1",
        receive_bytes: int = _RECEIVE_BYTES,
    ) -> None:
        self.receiver = receiver or Receiver()
        self.malformed = self.requested = 0
        self._servers = list(requests)
        self._turn = 0
        self._hosts = {_host(each) for each in self._servers}
        # Answers come to the port that asks.
        local = requests[0][0] if requests else "127.0.0.1"
        self._asking = _bound(("::" if ":" in local else "0.0.0.0", 0))
        try:
            self._group = _group_receiver(group, interface, receive_bytes)
        except MulticastError:
            self._asking.close()
            raise

    def poll(self, timeout_s: float) -> list[Event]:
        """Return what has come, in order; wait up to so long for something."""
        end = time.monotonic() + timeout_s
        while True:
            events = self._work(max(end - time.monotonic(), 0.0))
            if events or time.monotonic() >= end:
                return events

    def __iter__(self) -> Iterator[Event]:
        """Yield messages and losses until the session has ended."""
        while not (self.receiver.is_ended and not self.receiver.missing):
            yield from self.poll(1.0)

    def close(self) -> None:
        """Close the sockets."""
        self._group.close()
        self._asking.close()

    def _work(self, left_s: float) -> list[Event]:
        now = _now_ms()
        due = self.receiver.next_due_ms()
        wait_ms = min(left_s * 1000, _LOOK_MS if due is None else max(due - now, 0))
        ready = _ready((self._group, self._asking), wait_ms / 1000)
        events: list[Event] = []
        for each in ready:
            events += self._receive(each)
        now = _now_ms()
        events += self.receiver.expire(now)
        for request in self.receiver.requests(now):
            self._ask(encode_request(request))
        return events

    def _receive(self, source: socket.socket) -> list[Event]:
        """Take all packets that are there."""
        events: list[Event] = []
        for _ in range(256):
            try:
                data, address = source.recvfrom(LARGEST_PACKET)
            except BlockingIOError:
                break
            except OSError:
                continue  # the server is away: the next request may reach it
            is_answer = source is self._asking
            if is_answer and address[0] not in self._hosts:
                self.malformed += 1
                continue
            try:
                packet = decode_packet(data)
            except PacketError:
                self.malformed += 1
                continue
            events += self.receiver.take(packet, _now_ms(), is_answer=is_answer)
        return events

    def _ask(self, data: bytes) -> None:
        if not self._servers:
            return
        server = self._servers[self._turn % len(self._servers)]
        self._turn += 1
        self.requested += 1
        try:
            self._asking.sendto(data, server)
        except OSError:
            return  # it is asked again after a pause


def _ready(sockets: Sequence[socket.socket], timeout_s: float) -> list[socket.socket]:
    """Return the sockets that have something; wait up to so long for the first one.

    ``select.select`` refuses the descriptors above 1,023 of a process with many connections.
    """
    poller = select.poll()
    for each in sockets:
        poller.register(each, select.POLLIN)
    found = {number for number, _ in poller.poll(max(math.ceil(timeout_s * 1000), 0))}
    return [each for each in sockets if each.fileno() in found]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _host(address: Address) -> str:
    _check_port(address)
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0][4]
    except OSError as error:
        raise MulticastError(
            f"the address of {address[0]} is not known: {error.strerror or error}",
            hint="Name the address of a re-request server.",
        ) from error
    return str(found[0])


def _check_port(address: Address) -> None:
    if not 0 <= address[1] <= 65_535:
        raise MulticastError(f"the port of {address[0]}:{address[1]} is not from 0 to 65535")


def _bound(address: Address) -> socket.socket:
    _check_port(address)
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.bind(address)
    except OSError as error:
        made.close()
        raise MulticastError(
            f"can't bind {address[0]}:{address[1]}: {error.strerror or error}",
            hint="Choose another address or port.",
        ) from error
    made.setblocking(False)
    return made


def _check_group(group: Address) -> None:
    _check_port(group)
    try:
        found = ipaddress.ip_address(group[0])
    except ValueError as error:
        raise MulticastError(f"{group[0]} is not an address of a group") from error
    if not found.is_multicast or found.version != 4:
        raise MulticastError(
            f"{group[0]} is not a multicast address of IPv4", hint="Choose one of 239.0.0.0/8."
        )


def _group_sender(group: Address, interface: str) -> socket.socket:
    _check_group(group)
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _RECEIVE_BYTES)
    except OSError as error:
        made.close()
        raise _no_interface(interface, error) from error
    return made


def _group_receiver(group: Address, interface: str, receive_bytes: int) -> socket.socket:
    _check_group(group)
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.bind(group)
        membership = struct.pack("4s4s", socket.inet_aton(group[0]), socket.inet_aton(interface))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    except OSError as error:
        made.close()
        raise _no_interface(interface, error) from error
    made.setblocking(False)
    return made


def _no_interface(interface: str, error: OSError) -> MulticastError:
    return MulticastError(
        f"no multicast on interface {interface}: {error.strerror or error}",
        hint="Name the address of a network interface of this machine.",
    )
