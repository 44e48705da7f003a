"""The re-request server, without sockets: who is answered, and how much.

Twenty bytes can ask for 65,534 messages, and a sender's address can be forged. So only members are
answered, with a bounded number of bytes per member and second. Time is a parameter. Must not know:
sockets, where messages come from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Protocol

from tidemill.direct.multicast.errors import MulticastError
from tidemill.direct.multicast.wire import Packet, Request, encode_packet, pack

Network = IPv4Network | IPv6Network
LOOPBACK = ("127.0.0.0/8", "::1/128")
_MOST_MEMBERS = 10_000


class Messages(Protocol):
    """The messages of a session, by sequence."""

    @property
    def session(self) -> bytes:
        """The session."""
        ...

    @property
    def first(self) -> int:
        """The first message that exists."""
        ...

    @property
    def end(self) -> int:
        """The message that comes next."""
        ...

    def read(self, sequence: int, count: int, size: int) -> Sequence[bytes]:
        """Return messages from a sequence on, up to about ``size`` bytes.

        None at all means that they do not exist any more, as ``first`` then says, or that they
        can't be read now: the receiver asks again.
        """
        ...


@dataclass(slots=True)
class _Budget:
    left: float
    at_ms: int


class Answers:
    """Answers requests within limits.

    Args:
        members: Networks whose addresses are answered.
        bytes_per_s: Bytes of answers to one address in a second.
        packet_size: Bytes of a packet, unless one message is larger.
        most_packets: Packets of one answer. A receiver asks again for the rest.

    Attributes:
        answered: Requests that were answered.
        messages: Messages in the answers.
        refused: Requests of addresses that are not members, or of other sessions.
        throttled: Requests that were left out because their address has had its bytes.

    Raises:
        MulticastError: a network is malformed.
    """

    def __init__(
        self,
        messages: Messages,
        members: Sequence[str] = LOOPBACK,
        *,
        bytes_per_s: int = 10_000_000,
        packet_size: int = 1400,
        most_packets: int = 16,
    ) -> None:
        try:
            self._members: list[Network] = [ip_network(each) for each in members]
        except ValueError as error:
            raise MulticastError(
                f"a network of members is malformed: {error}", hint="Write 192.168.1.0/24."
            ) from error
        self._source = messages
        self._bytes_per_s = bytes_per_s
        self._packet_size = packet_size
        self._most_packets = most_packets
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()
        self.answered = self.messages = self.refused = self.throttled = 0

    def answer(self, request: Request, host: str, now_ms: int) -> Iterator[bytes]:
        """Yield the datagrams that answer a request.

        The first one says where the session begins if the messages do not exist any more.
        """
        messages = self._source
        if request.session != messages.session or not self._is_member(host):
            self.refused += 1
            return
        budget = self._budget(host, now_ms)
        if budget.left <= 0:
            self.throttled += 1
            return
        self.answered += 1
        first, end = request.sequence, min(request.sequence + request.count, messages.end)
        for _ in range(self._most_packets):
            if first >= end or budget.left <= 0:
                return
            found: Sequence[bytes] = ()
            if first >= messages.first:
                found = messages.read(first, end - first, self._packet_size)
            if first < messages.first:  # reading possibly has found that out
                data = encode_packet(Packet(messages.session, messages.first))
                budget.left -= len(data)
                yield data
                first = messages.first
                continue
            if not found:
                return
            data, count = next(pack(messages.session, first, found, self._packet_size))
            budget.left -= len(data)
            first += count
            self.messages += count
            yield data

    def _is_member(self, host: str) -> bool:
        address = ip_address(host.partition("%")[0])
        return any(address in network for network in self._members)

    def _budget(self, host: str, now_ms: int) -> _Budget:
        """Return the budget of an address, filled up for the time since its last request."""
        budget = self._budgets.pop(host, None) or _Budget(self._bytes_per_s, now_ms)
        self._budgets[host] = budget
        if len(self._budgets) > _MOST_MEMBERS:
            self._budgets.popitem(last=False)
        more = (now_ms - budget.at_ms) / 1000 * self._bytes_per_s
        budget.left = min(budget.left + more, self._bytes_per_s)
        budget.at_ms = now_ms
        return budget
