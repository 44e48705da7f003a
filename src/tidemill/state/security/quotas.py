"""Find the quota of a client among eight levels, and count what it uses in token buckets.

Knows no door, no protocol and no clock: time is a parameter.

Source: KIP-13, KIP-55, KIP-124, KIP-219, KIP-546, KIP-599, KIP-612.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from tidemill.state.errors import InvalidRequestError
from tidemill.state.security.types import DEFAULT, QuotaEntity, QuotaValues

PRODUCER_RATE, CONSUMER_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_RATE = "connection_creation_rate"

OF_CLIENTS = frozenset({PRODUCER_RATE, CONSUMER_RATE, REQUEST_PERCENTAGE, MUTATION_RATE})
OF_ADDRESSES = frozenset({CONNECTION_RATE})

MOST_DEBT_S = 60.0
"""Seconds for which a client waits at most after it has used much more than its quota."""
MOST_THROTTLE_MS = 10_000
"""The longest pause of one answer: clients give up requests after 30 seconds."""


def levels(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, QuotaEntity]]:
    """Yield the entities whose quotas count for a client, the most specific first.

    Beside each is the entity that shares its bucket: with a quota of a user, all clients of this
    user share it.
    """
    both, by_user = QuotaEntity(user, client_id), QuotaEntity(user)
    by_client = QuotaEntity(None, client_id)
    yield both, both
    yield QuotaEntity(user, DEFAULT), both
    yield by_user, by_user
    yield QuotaEntity(DEFAULT, client_id), both
    yield QuotaEntity(DEFAULT, DEFAULT), both
    yield QuotaEntity(DEFAULT), by_user
    yield by_client, by_client
    yield QuotaEntity(None, DEFAULT), by_client


def quota_of(
    quotas: Mapping[QuotaEntity, QuotaValues], user: str, client_id: str, name: str
) -> tuple[float, QuotaEntity] | None:
    """Return the quota of a client and the entity that shares its bucket; None without a quota."""
    for entity, shared in levels(user, client_id):
        value = quotas.get(entity, {}).get(name)
        if value is not None:
            return value, shared
    return None


def quota_of_address(
    quotas: Mapping[QuotaEntity, QuotaValues], address: str, name: str
) -> tuple[float, QuotaEntity] | None:
    """Return the quota of an address; None without a quota."""
    own = QuotaEntity(ip=address)
    for entity in (own, QuotaEntity(ip=DEFAULT)):
        value = quotas.get(entity, {}).get(name)
        if value is not None:
            return value, own
    return None


class Bucket:
    """Tokens that grow with time up to those of one second. Using more than there are is a debt.

    Args:
        rate: tokens per second, above 0.
    """

    __slots__ = ("_at_ms", "_tokens", "rate")

    def __init__(self, rate: float, now_ms: int) -> None:
        self.rate = rate
        self._tokens = rate
        self._at_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """Return for how many milliseconds there is a debt."""
        self._fill(now_ms)
        if self._tokens >= 0:
            return 0
        return min(math.ceil(-self._tokens * 1000 / self.rate), MOST_THROTTLE_MS)

    def use(self, amount: float, now_ms: int) -> int:
        """Use tokens; return for how many milliseconds there is a debt."""
        self._fill(now_ms)
        self._tokens = max(self._tokens - amount, -self.rate * MOST_DEBT_S)
        return self.wait_ms(now_ms)

    def is_full(self, now_ms: int) -> bool:
        """Return whether nothing was used lately, so that a new bucket would be the same."""
        self._fill(now_ms)
        return self._tokens >= self.rate

    def _fill(self, now_ms: int) -> None:
        passed, self._at_ms = now_ms - self._at_ms, now_ms
        self._tokens = min(self._tokens + passed * self.rate / 1000, self.rate)


def check_quota(entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
    """Check quotas that a client sets.

    Raises:
        InvalidRequestError: the entity has a mix that does not exist, a name is unknown, or a value
            is out of range.
    """
    is_address = entity.ip is not None
    if is_address and (entity.user is not None or entity.client_id is not None):
        raise InvalidRequestError("a quota of an address can't name a user or a client, too")
    if entity == QuotaEntity():
        raise InvalidRequestError("a quota needs a user, a client id or an address")
    allowed = OF_ADDRESSES if is_address else OF_CLIENTS
    for name, value in changes.items():
        if name not in allowed:
            raise InvalidRequestError(
                f"invalid quota {name!r}", hint=f"Use one of {', '.join(sorted(allowed))}."
            )
        if value is not None and not (0 < value < math.inf):
            raise InvalidRequestError(
                f"invalid value {value} of {name}", hint="A quota is above 0."
            )
