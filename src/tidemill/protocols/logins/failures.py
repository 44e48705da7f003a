"""Limits who guesses passwords: failed logins by address and name, and logins under way.

Both tables are bounded. Must not know: a protocol, a mechanism.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_OF_USER, MOST_OF_ADDRESS = 20, 200
"""Failed logins that are checked one after the other: with one name from one address, and with any
name from one address. One client with a wrong password does not keep out the others beside it."""
USER_PER_SECOND, ADDRESS_PER_SECOND = 1.0, 10.0
"""How many more can fail in a second after that."""
MOST_ENTRIES = 10_000
"""Addresses and names that are remembered: the oldest are forgotten."""


class Failures:
    """Counts failed logins: a bucket that a failure fills and time empties, for each key.

    Args:
        now: seconds that never decrease.
        most: failures until a bucket is full.
        per_second: failures that leave a bucket in a second.
    """

    def __init__(self, now: Callable[[], float], most: int, per_second: float) -> None:
        self._now = now
        self._most = most
        self._per_second = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may_try(self, key: str) -> bool:
        """Return whether a login is checked."""
        return self._level(key) <= self._most - 1

    def failed(self, key: str) -> None:
        """Count a failed login."""
        level = self._level(key)
        self._buckets.pop(key, None)
        self._buckets[key] = (min(level + 1, self._most), self._now())
        if len(self._buckets) > MOST_ENTRIES:
            self._buckets.popitem(last=False)

    def _level(self, key: str) -> float:
        level, since = self._buckets.get(key, (0.0, 0.0))
        return max(0.0, level - (self._now() - since) * self._per_second)


class Pending:
    """Connections whose logins are not complete, in the order in which they came.

    Args:
        most: Above this number, the oldest of the address with the most is closed, so that a
            client which never completes its logins keeps out no other address.
    """

    def __init__(self, most: int) -> None:
        self._most = max(most, 1)
        self._by_address: dict[str, dict[object, Callable[[], object]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: object, address: str, close: Callable[[], object]) -> None:
        """Add a connection; ``close`` closes it. There can be too many then: the oldest goes."""
        self._by_address.setdefault(address, {})[key] = close
        self._count += 1
        if self._count > self._most:
            crowd = max(self._by_address, key=lambda each: len(self._by_address[each]))
            oldest = next(iter(self._by_address[crowd]))
            close_oldest = self._by_address[crowd][oldest]
            self.remove(oldest, crowd)
            close_oldest()

    def remove(self, key: object, address: str) -> None:
        """Forget a connection: its login is complete, or it is closed."""
        keys = self._by_address.get(address, {})
        if keys.pop(key, None) is not None:
            self._count -= 1
            if not keys:
                del self._by_address[address]
