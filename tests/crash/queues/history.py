"""What the clients of queues have seen over the lives of a broker, and what must hold.

Knows the lines of ``client`` and the times of the broker's lives, and nothing of processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.crash.queues.client import POISON

NUMBERS = 1_000_000_000
"""The numbers of one publisher."""


@dataclass(frozen=True)
class Connection:
    """One connection of a client.

    Attributes:
        begun, opened: when the client began to connect, and when its channel was open.
    """

    begun: float
    opened: float


@dataclass(frozen=True)
class Delivered:
    """One delivery."""

    number: int
    redelivered: bool
    at: float
    connection: Connection


@dataclass
class History:
    """The lines of one client, or of several.

    Attributes:
        confirmed: numbers that the broker has confirmed.
        deliveries: in the order in which each client got them.
        stored: when a client knew that the acknowledgement was on disk, by number.
    """

    confirmed: set[int] = field(default_factory=set)
    deliveries: list[Delivered] = field(default_factory=list)
    stored: dict[int, tuple[float, Connection]] = field(default_factory=dict)

    def read(self, lines: Iterable[str]) -> None:
        """Add the complete lines of one client."""
        connection = Connection(0, 0)
        for line in lines:
            if not line.endswith("\n"):
                continue
            kind, *fields = line.split()
            match kind:
                case "C":
                    connection = Connection(float(fields[0]), float(fields[1]))
                case "P":
                    self.confirmed.add(int(fields[0]))
                case "D":
                    number, redelivered, at = int(fields[0]), fields[1] == "1", float(fields[2])
                    self.deliveries.append(Delivered(number, redelivered, at, connection))
                case "A":
                    self.stored[int(fields[0])] = float(fields[1]), connection


class Lives:
    """When the broker was started and when it was killed. Times are monotonic.

    Attributes:
        started: just before each start.
        ended: just after each end.
    """

    def __init__(self) -> None:
        self.started: list[float] = []
        self.ended: list[float] = []

    def first_of(self, connection: Connection) -> int:
        """Return the earliest life that a connection can belong to."""
        return sum(end < connection.begun for end in self.ended)

    def last_of(self, connection: Connection) -> int:
        """Return the latest life that a connection can belong to."""
        return sum(start < connection.opened for start in self.started) - 1

    def is_later(self, delivery: Delivered, at: float, connection: Connection) -> bool:
        """Return whether a delivery certainly was sent after an answer that came at ``at``.

        Bytes of an earlier life can lie in a client's socket for long, so the time at which they
        were read says nothing if the two are of different lives.
        """
        first, last = self.first_of(delivery.connection), self.last_of(delivery.connection)
        if first > self.last_of(connection):
            return True
        is_same = first == last == self.first_of(connection) == self.last_of(connection)
        return is_same and delivery.at > at


def check(history: History, lives: Lives) -> None:
    """Check what must hold at any time, while messages wait or not."""
    for delivery in history.deliveries:
        stored = history.stored.get(delivery.number)
        assert stored is None or not lives.is_later(delivery, *stored), (
            f"{delivery} comes after its acknowledgement was on disk: {stored}"
        )
    firsts = Counter(each.number for each in history.deliveries if not each.redelivered)
    twice = [number for number, count in firsts.items() if count > 1]
    assert not twice, f"second deliveries are not marked as redelivered: {twice[:5]}"
    latest: dict[tuple[Connection, int], int] = {}
    for delivery in history.deliveries:
        if not delivery.redelivered:
            key = delivery.connection, delivery.number // NUMBERS
            assert latest.get(key, -1) < delivery.number, (
                f"{delivery} is out of order: {latest[key]}"
            )
            latest[key] = delivery.number


def check_letters(confirmed: set[int], letters: list[int]) -> None:
    """Check the dead-letter queue at the end."""
    poison = {number for number in confirmed if number % POISON == 0}
    missing = poison - set(letters)
    assert not missing, f"dead letters are missing: {sorted(missing)[:5]}"
    twice = [number for number, count in Counter(letters).items() if count > 1]
    assert not twice, f"dead letters came twice: {twice[:5]}"
    healthy = [number for number in letters if number % POISON]
    assert not healthy, f"a message is dead that no consumer rejected: {healthy[:5]}"
