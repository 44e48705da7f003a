"""Keeps several Produce requests under way, and sends again what was not acknowledged.

Must not know: Arrow, encoders, transactions' coordinators. Source: KIP-98 (sequence numbers).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemill.kafka_client.brokers import leader_of
from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import (
    BrokerError,
    ConnectionFailedError,
    ConnectionRejectedError,
    text_of,
)
from tidemill.kafka_client.producing import failures
from tidemill.kafka_client.producing.cluster import Cluster
from tidemill.kafka_client.producing.failures import ErrorFactory
from tidemill.kafka_client.producing.record_batch import Batch
from tidemill.kafka_client.producing.settings import ProducerSettings
from tidemill.kafka_client.settings import Address
from tidemill.kafka_codec import client_hot
from tidemill.kafka_codec.declared import PRODUCE

_REQUEST_BYTES = 1024 * 1024
"""Most bytes of a request, unless one batch is larger."""
_FLYING_BYTES = 32 * 1024 * 1024
"""Most bytes under way, unless one request is larger."""


@dataclass(slots=True)
class _Flight:
    """A request whose response is still to come."""

    connection: Connection
    batches: list[Batch]
    size: int


class Pipeline:
    """The requests under way to all leaders. After an error it can't be used again.

    Attributes:
        servers: Addresses to begin with, for messages.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        producer: tuple[int, int],
        errors: ErrorFactory,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._producer = producer
        self._errors = errors
        self._flights: dict[Address, deque[_Flight]] = {}
        self._flying = 0
        self._failed: list[Batch] = []
        self._cause = ""
        self._repeats = False
        self.servers = ",".join(f"{host}:{port}" for host, port in settings.connection.servers)

    def post(self, batches: Iterable[Batch]) -> None:
        """Send batches, at most one of a partition. Responses to earlier ones can be received."""
        for address, group in self._requests(batches):
            self._make_space(address, sum(batch.size for batch in group))
            self._send(address, group)
        if self._failed:
            self._repeat()

    def drain(self) -> None:
        """Wait until all batches are acknowledged."""
        self._receive_all()
        if self._failed:
            self._repeat()

    def _requests(self, batches: Iterable[Batch]) -> Iterator[tuple[Address, list[Batch]]]:
        """Yield the batches of each request to a leader."""
        for address, group in self._by_leader(batches).items():
            request: list[Batch] = []
            size = 0
            for batch in group:
                if request and size + batch.size > _REQUEST_BYTES:
                    yield address, request
                    request, size = [], 0
                request.append(batch)
                size += batch.size
            yield address, request

    def _by_leader(self, batches: Iterable[Batch]) -> dict[Address, list[Batch]]:
        groups: dict[Address, list[Batch]] = {}
        for batch in batches:
            deadline = batch.made + self._settings.timeout_ms / 1000
            try:
                found = self._cluster.topic(batch.topic, deadline)
                groups.setdefault(leader_of(found, batch.partition), []).append(batch)
            except ConnectionRejectedError as error:
                raise self._errors.rejected(self.servers, str(error)) from error
            except ConnectionFailedError as error:
                self._fail([batch], str(error))
            except BrokerError as error:
                self._judge(batch, error.code)
        return groups

    def _make_space(self, address: Address, size: int) -> None:
        mine = self._flights.setdefault(address, deque())
        while len(mine) >= self._settings.in_flight:
            self._receive(address)
        while self._flying and self._flying + size > _FLYING_BYTES:
            self._receive(next(each for each, flights in self._flights.items() if flights))

    def _send(self, address: Address, batches: list[Batch]) -> None:
        settings = self._settings
        topics: dict[str, list[Batch]] = {}
        for batch in batches:
            topics.setdefault(batch.topic, []).append(batch)
        batches = [batch for each in topics.values() for batch in each]
        parts = client_hot.produce(
            settings.transactional_id,
            settings.acks,
            settings.broker_timeout_ms,
            {
                name: [(each.partition, each.size) for each in found]
                for name, found in topics.items()
            },
        )
        body = []
        for part, batch in zip(parts, batches, strict=True):
            header = batch.header(self._producer, transactional=bool(settings.transactional_id))
            body += [part + header, batch.body]
        connection = None
        try:
            connection = self._cluster.data.at(address, self._left_s(batches))
            connection.send(PRODUCE, *body)
        except ConnectionRejectedError as error:
            raise self._errors.rejected(self.servers, str(error)) from error
        except ConnectionFailedError as error:
            self._lose(address, connection, str(error))
            self._fail(batches, str(error))
            return
        flight = _Flight(connection, batches, sum(batch.size for batch in batches))
        self._flights.setdefault(address, deque()).append(flight)
        self._flying += flight.size

    def _left_s(self, batches: list[Batch]) -> float:
        """Return the seconds until the first of the batches must be acknowledged."""
        deadline = min(each.made for each in batches) + self._settings.timeout_ms / 1000
        left = min(deadline - time.monotonic(), self._settings.connection.request_timeout_ms / 1000)
        return max(0.001, left)

    # --- responses -------------------------------------------------------------------------------

    def _receive_all(self) -> None:
        for address in list(self._flights):
            while self._flights[address]:
                self._receive(address)

    def _receive(self, address: Address) -> None:
        """Receive the response to the oldest request to a broker."""
        flight = self._flights[address][0]
        connection = flight.connection
        try:
            codes = connection.receive(
                self._left_s(flight.batches),
                lambda view: client_hot.parse_produce(
                    view,
                    connection.versions[PRODUCE],
                    [(each.topic, each.partition) for each in flight.batches],
                ),
            )
        except ConnectionFailedError as error:
            self._lose(address, connection, str(error))
            return
        self._flights[address].popleft()
        self._flying -= flight.size
        for batch in flight.batches:
            self._judge(batch, codes[batch.topic, batch.partition])

    def _lose(self, address: Address, connection: Connection | None, cause: str) -> None:
        """Close a connection. What was under way has failed."""
        self._cluster.data.drop(connection)
        mine = self._flights.setdefault(address, deque())
        while mine:
            flight = mine.popleft()
            self._flying -= flight.size
            self._fail(flight.batches, cause)

    def _judge(self, batch: Batch, code: int) -> None:
        if code in (0, failures.DUPLICATE):
            return
        # A batch after one that has failed is out of order, until that one was sent again.
        is_after_failure = code == failures.OUT_OF_ORDER and not self._repeats
        if code not in failures.RETRIABLE and not is_after_failure:
            raise self._errors.not_accepted(batch.count, batch.topic, text_of(code), code)
        self._fail([batch], text_of(code))

    def _fail(self, batches: list[Batch], cause: str) -> None:
        if not self._failed or not self._cause:
            self._cause = cause
        self._failed += batches

    # --- again -----------------------------------------------------------------------------------

    def _repeat(self) -> None:
        """Send again what has failed, in order: one batch of each partition at a time."""
        self._receive_all()
        self._repeats = True
        attempts = 0
        while self._failed:
            left = sorted(self._failed, key=lambda batch: batch.number)
            self._check_deadline(left)
            if attempts:  # the first failure may be a connection that was idle for too long
                time.sleep(self._settings.backoff_ms / 1000)
            attempts += 1
            for topic in {batch.topic for batch in left}:
                self._cluster.forget(topic)
            self._failed = []
            while left and not self._failed:
                first = {(each.topic, each.partition): each for each in reversed(left)}
                chosen = {each.number for each in first.values()}
                left = [each for each in left if each.number not in chosen]
                for address, group in self._requests(first.values()):
                    self._make_space(address, sum(batch.size for batch in group))
                    self._send(address, group)
                self._receive_all()
            self._failed += left
        self._repeats, self._cause = False, ""

    def _check_deadline(self, left: list[Batch]) -> None:
        is_unknown = self._cause == text_of(failures.UNKNOWN_TOPIC)
        patience_s = self._settings.propagation_ms / 1000
        if is_unknown and time.monotonic() - left[0].made >= patience_s:
            count, topic = sum(batch.count for batch in left), left[0].topic
            raise self._errors.not_accepted(count, topic, self._cause, failures.UNKNOWN_TOPIC)
        if time.monotonic() - left[0].made >= self._settings.timeout_ms / 1000:
            count = sum(batch.count for batch in left)
            raise self._errors.not_accepted(count, left[0].topic, self._cause)
