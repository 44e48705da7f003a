"""The connections of one query to a cluster, and what is known of its partitions.

Clients are kept for the next range, because in small micro-batches connecting takes longer than
reading. Must not know: Spark, plans, Arrow.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping

from tidemill.spark.source.native import messages
from tidemill.spark.source.native.connection import Connection
from tidemill.spark.source.native.errors import BrokerError, ConnectionFailedError
from tidemill.spark.source.native.settings import ClientSettings
from tidemill.spark.source.native.tls import make_context

_MOST_CLIENTS = 4
UNKNOWN_TOPIC = 3
LEADER_NOT_AVAILABLE = 5

Partition = tuple[str, int]


class Client:
    """The connections to the brokers of one cluster, for one range at a time.

    Args:
        settings: The settings.

    Attributes:
        settings: The settings.
        record_bytes: The latest bytes per offset, by topic.

    Raises:
        OSError: A certificate or key can't be read.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.record_bytes: dict[str, float] = {}
        self._context: ssl.SSLContext | None = None
        if settings.with_tls:
            self._context = make_context(settings)
        self._connections: dict[tuple[str, int], Connection] = {}
        self._leaders: dict[Partition, tuple[str, int]] = {}
        self._known_topics: set[str] = set()

    def has_known(self, topic: str) -> bool:
        """Whether a partition of the topic had a leader."""
        return topic in self._known_topics

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def rest(self) -> None:
        """Prepare for a time without requests: a response that is not needed is not received."""
        for address, connection in list(self._connections.items()):
            if connection.is_busy:
                self._drop(address)
            else:
                connection.shrink()

    def leader(self, topic: str, partition: int, timeout_s: float) -> Connection:
        """Return a connection to the leader of a partition.

        Args:
            topic: The topic.
            partition: The partition.
            timeout_s: Seconds to wait for a broker.

        Raises:
            ConnectionFailedError: No broker can be reached.
            ConnectionRejectedError: The credentials or the TLS settings are wrong.
            BrokerError: The topic has no such partition, or no leader, or is forbidden.
        """
        deadline = time.monotonic() + timeout_s
        address = self._leaders.get((topic, partition))
        if address is None:
            address = self._find_leader(topic, partition, deadline)
            self._leaders[topic, partition] = address
            self._known_topics.add(topic)
        return self._connection(address, deadline - time.monotonic())

    def forget(self, topic: str, partition: int, connection: Connection | None = None) -> None:
        """Ask for the leader again before the next request.

        Args:
            topic: The topic.
            partition: The partition.
            connection: A connection that can't be used any more.
        """
        self._leaders.pop((topic, partition), None)
        for address, each in list(self._connections.items()):
            if each is connection:
                self._drop(address)

    def offset(self, topic: str, partition: int, which: int, timeout_s: float) -> int:
        """Return the first or the end offset of a partition.

        Args:
            topic: The topic.
            partition: The partition.
            which: ``messages.EARLIEST`` or ``messages.LATEST``.
            timeout_s: Seconds to wait.

        Raises:
            ConnectionFailedError: The leader can't be reached.
            ConnectionRejectedError: The credentials or the TLS settings are wrong.
            BrokerError: The leader answers with an error.
        """
        connection = self.leader(topic, partition, timeout_s)
        committed = self.settings.read_committed
        body = messages.list_offset(topic, partition, which, committed=committed)
        error, offset = messages.parse_list_offset(
            connection.call(messages.LIST_OFFSETS, body, timeout_s)
        )
        if error:
            raise BrokerError(error)
        return offset

    def _find_leader(self, topic: str, partition: int, deadline: float) -> tuple[str, int]:
        connection = self._any(deadline)
        try:
            view = connection.call(
                messages.METADATA, messages.metadata(topic), deadline - time.monotonic()
            )
            found = messages.parse_metadata(view, topic)
        except ConnectionFailedError:
            self.forget(topic, partition, connection)
            raise
        if found.error:
            raise BrokerError(found.error)
        error, node = found.leaders.get(partition, (UNKNOWN_TOPIC, -1))
        # 9: a replica is not available, which does not matter for reading.
        if error not in (0, 9):
            raise BrokerError(error)
        if node not in found.brokers:
            raise BrokerError(LEADER_NOT_AVAILABLE)
        return found.brokers[node]

    def _any(self, deadline: float) -> Connection:
        """Return a connection to any broker."""
        last: ConnectionFailedError | None = None
        known = list(dict.fromkeys([*self._connections, *self.settings.servers]))
        for number, address in enumerate(known):
            # An address that does not answer must leave time for the others.
            share = (deadline - time.monotonic()) / (len(known) - number)
            try:
                return self._connection(address, share)
            except ConnectionFailedError as error:
                last = error
        raise last or ConnectionFailedError("no address of a broker is known")

    def _connection(self, address: tuple[str, int], timeout_s: float) -> Connection:
        connection = self._connections.get(address)
        if connection is None:
            connection = Connection(address, self.settings, self._context, max(0.001, timeout_s))
            self._connections[address] = connection
        return connection

    def _drop(self, address: tuple[str, int]) -> None:
        self._connections.pop(address).close()


class ClientPool:
    """The idle clients of this process, by the settings of librdkafka.

    It is not thread-safe, because a worker runs one task at a time.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[tuple[str, str], ...], Client] = {}
        self._pid = os.getpid()

    def take(self, kafka: Mapping[str, str], settings: ClientSettings) -> Client:
        """Return an idle client with these settings, or a new one.

        Raises:
            OSError: A certificate or key can't be read.
        """
        if self._pid != os.getpid():  # the other process uses the same connections
            self._idle, self._pid = {}, os.getpid()
        return self._idle.pop(_key(kafka), None) or Client(settings)

    def give(self, kafka: Mapping[str, str], client: Client) -> None:
        """Take back a client that can be used again."""
        client.rest()
        key = _key(kafka)
        if key in self._idle:
            client.close()
            return
        self._idle[key] = client
        while len(self._idle) > _MOST_CLIENTS:
            self._idle.pop(next(iter(self._idle))).close()

    def clear(self) -> None:
        """Close all idle clients."""
        while self._idle:
            self._idle.popitem()[1].close()


def _key(kafka: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(kafka.items()))
