"""Limits who guesses passwords: failed logins of each address, and logins that are not complete.

Both tables are bounded. Must not know: a protocol, a mechanism.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_FAILURES = 20
"""Failed logins of one address that are checked one after the other."""
SECONDS_EACH = 1.0
"""An address can fail once more after this time."""
MOST_ADDRESSES = 10_000
"""Addresses whose failures are remembered: the oldest are forgotten."""


class Failures:
    """Counts failed logins of each address: a bucket that a failure fills and time empties.

    Args:
        now: seconds that never decrease.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def may_try(self, address: str) -> bool:
        """Return whether a login of an address is checked."""
        return self._level(address) <= MOST_FAILURES - 1

    def failed(self, address: str) -> None:
        """Count a failed login."""
        level = self._level(address)
        self._buckets.pop(address, None)
        self._buckets[address] = (min(level + 1, MOST_FAILURES), self._now())
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)

    def _level(self, address: str) -> float:
        level, since = self._buckets.get(address, (0.0, 0.0))
        return max(0.0, level - (self._now() - since) / SECONDS_EACH)


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
