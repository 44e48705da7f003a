"""Quotas at work: what clients use is counted, and who uses too much has to wait.

A broker without quotas only looks at a flag. Knows no protocol: the caller pauses the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tidemill.clock import Clock
from tidemill.engine.security.security_log import SecurityLog
from tidemill.state.security.quotas import (
    CONNECTION_RATE,
    CONSUMER_RATE,
    MUTATION_RATE,
    PRODUCER_RATE,
    REQUEST_PERCENTAGE,
    Bucket,
    check_quota,
    quota_of,
    quota_of_address,
)
from tidemill.state.security.types import QuotaEntity, QuotaValues

MOST_BUCKETS = 10_000
"""Buckets that are kept. Above it the full ones are dropped, and if there are none, all."""


class Quotas:
    """The quotas of all clients.

    Attributes:
        with_producers, with_consumers, with_requests, with_mutations, with_connections: whether
            there is any quota of the kind.
        counts_writes: whether each request with records must be looked at by itself.
    """

    def __init__(self, log: SecurityLog, clock: Clock) -> None:
        self._state = log.state
        self._clock = clock
        self._buckets: dict[tuple[str, QuotaEntity], Bucket] = {}
        self._of_client: dict[tuple[str, str, str], Bucket | None] = {}
        log.on_change.append(self.changed)
        self.changed()

    def changed(self) -> None:
        """Take note of quotas that were changed. What was used counts on."""
        names = {name for values in self._state.quotas.values() for name in values}
        self.with_producers = PRODUCER_RATE in names
        self.with_consumers = CONSUMER_RATE in names
        self.with_requests = REQUEST_PERCENTAGE in names
        self.counts_writes = self.with_producers or self.with_requests
        self.with_mutations = MUTATION_RATE in names
        self.with_connections = CONNECTION_RATE in names
        self._of_client.clear()

    def bucket(self, user: str, client_id: str, name: str) -> Bucket | None:
        """Return the bucket of a client; None if it has no quota."""
        key = (user, client_id, name)
        if key in self._of_client:
            return self._of_client[key]
        if len(self._of_client) >= MOST_BUCKETS:
            self._of_client.clear()
        found = quota_of(self._state.quotas, user, client_id, name)
        bucket = None if found is None else self._bucket(name, *found)
        self._of_client[key] = bucket
        return bucket

    def connected(self, address: str) -> int:
        """Count a connection; return how long it must wait, in milliseconds."""
        if not self.with_connections:
            return 0
        found = quota_of_address(self._state.quotas, address, CONNECTION_RATE)
        if found is None:
            return 0
        return self._bucket(CONNECTION_RATE, *found).use(1, self.now_ms())

    def now_ms(self) -> int:
        """Return the time that buckets count in."""
        return self._clock.monotonic_ms()

    def _bucket(self, name: str, rate: float, entity: QuotaEntity) -> Bucket:
        key = (name, entity)
        bucket = self._buckets.get(key)
        if bucket is not None and bucket.rate == rate:
            return bucket
        if len(self._buckets) >= MOST_BUCKETS:
            self._drop_buckets()
        bucket = self._buckets[key] = Bucket(rate, self.now_ms())
        return bucket

    def _drop_buckets(self) -> None:
        now_ms = self.now_ms()
        kept = {key: each for key, each in self._buckets.items() if not each.is_full(now_ms)}
        self._buckets = {} if len(kept) >= MOST_BUCKETS else kept
        self._of_client.clear()


class ClientQuotas:
    """The quotas as one user's connection sees them.

    ``client_id`` is what the client calls itself. All times are in milliseconds.
    """

    __slots__ = ("_user", "quotas")

    def __init__(self, quotas: Quotas, user: str) -> None:
        self.quotas = quotas
        self._user = user

    def produced(self, client_id: str, size: int) -> int:
        """Count bytes that a client has sent; return how long it must wait."""
        return self._use(client_id, PRODUCER_RATE, size)

    def consumed(self, client_id: str, size: int) -> int:
        """Count bytes that a client gets; return how long it must wait for more."""
        return self._use(client_id, CONSUMER_RATE, size)

    def consumer_wait(self, client_id: str) -> int:
        """Return how long a client must wait for more bytes."""
        return self._wait(client_id, CONSUMER_RATE)

    def worked(self, client_id: str, seconds: float) -> int:
        """Count processor time for a request; return how long the client must wait.

        100 percent are one processor, which is all that the broker's event loop has.
        """
        return self._use(client_id, REQUEST_PERCENTAGE, seconds * 100)

    def mutated(self, client_id: str, count: int) -> int:
        """Count partitions that are created or deleted; return how long the client must wait."""
        return self._use(client_id, MUTATION_RATE, count)

    def mutation_wait(self, client_id: str) -> int:
        """Return how long a client must wait before it creates or deletes more."""
        return self._wait(client_id, MUTATION_RATE)

    def _use(self, client_id: str, name: str, amount: float) -> int:
        bucket = self.quotas.bucket(self._user, client_id, name)
        return 0 if bucket is None else bucket.use(amount, self.quotas.now_ms())

    def _wait(self, client_id: str, name: str) -> int:
        bucket = self.quotas.bucket(self._user, client_id, name)
        return 0 if bucket is None else bucket.wait_ms(self.quotas.now_ms())


class QuotaAdmin:
    """The quotas, as an administrator sees them."""

    def __init__(self, log: SecurityLog) -> None:
        self._log = log

    def all(self) -> Mapping[QuotaEntity, QuotaValues]:
        """Return the values of each entity."""
        return dict(self._log.state.quotas)

    async def alter(
        self,
        entity: QuotaEntity,
        changes: Mapping[str, float | None],
        validate_only: bool = False,
    ) -> None:
        """Set quotas of an entity, or remove them (None).

        Raises:
            InvalidRequestError: the entity or a quota is invalid.
            PolicyViolationError: there are too many.
            StorageError: nothing has changed.
        """
        check_quota(entity, changes)
        if not validate_only:
            await self._log.run(partial(self._log.state.alter_quota, entity, changes))
