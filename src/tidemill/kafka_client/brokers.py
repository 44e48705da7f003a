"""The connections to the brokers of one cluster, and the leaders of partitions.

Must not know: Spark, ranges, transactions.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass

from tidemill.kafka_client.connection import Connection, Versions
from tidemill.kafka_client.errors import BrokerError, ConnectionFailedError
from tidemill.kafka_client.settings import Address, ConnectionSettings
from tidemill.kafka_client.tls import make_context
from tidemill.kafka_codec.declared import METADATA, needs

UNKNOWN_TOPIC = 3
LEADER_NOT_AVAILABLE = 5
_REPLICA_NOT_AVAILABLE = 9
"""Does not matter to clients of the leader."""
_METADATA_NEEDS = needs(METADATA)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The leaders of one topic.

    Attributes:
        brokers: Addresses by node id.
        leaders: Error code and node id of the leader, by partition.
    """

    brokers: dict[int, Address]
    leaders: dict[int, tuple[int, int]]


class Brokers:
    """Connections to brokers. A connection is made when it is needed first.

    Args:
        needs: The versions of each request that the caller will send.

    Attributes:
        settings: The settings.
    """

    def __init__(self, settings: ConnectionSettings, needs: Versions) -> None:
        self.settings = settings
        self._needs = needs
        self._context: ssl.SSLContext | None = None
        if settings.with_tls:
            self._context = make_context(settings)
        self._connections: dict[Address, Connection] = {}

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

    def at(self, address: Address, timeout_s: float) -> Connection:
        """Return a connection to a broker."""
        connection = self._connections.get(address)
        if connection is None:
            connection = Connection(
                address, self.settings, self._context, max(0.001, timeout_s), self._needs
            )
            self._connections[address] = connection
        return connection

    def any(self, deadline: float) -> Connection:
        """Return a connection to any broker.

        Args:
            deadline: When to give up, on the monotonic clock.
        """
        last: ConnectionFailedError | None = None
        known = list(dict.fromkeys([*self._connections, *self.settings.servers]))
        for number, address in enumerate(known):
            # An address that does not answer must leave time for the others.
            share = (deadline - time.monotonic()) / (len(known) - number)
            try:
                return self.at(address, share)
            except ConnectionFailedError as error:
                last = error
        raise last or ConnectionFailedError("no address of a broker is known")

    def drop(self, connection: Connection | None) -> None:
        """Close a connection that can't be used any more."""
        for address, each in list(self._connections.items()):
            if each is connection:
                self._drop(address)

    def drop_closed(self) -> None:
        """Forget connections that were closed on this side."""
        for address, each in list(self._connections.items()):
            if not each.is_open:
                self._drop(address)

    def metadata(self, topic: str, deadline: float, *, create: bool = False) -> Metadata:
        """Return the leaders of a topic.

        Args:
            deadline: When to give up, on the monotonic clock.
            create: Whether a broker that creates topics by itself may do so.
        """
        connection = self.any(deadline)
        try:
            connection.agree(_METADATA_NEEDS)
            found = connection.request(
                METADATA,
                {"topics": [{"name": topic}], "allow_auto_topic_creation": create},
                deadline - time.monotonic(),
            )
        except ConnectionFailedError:
            self.drop(connection)
            raise
        about = next((each for each in found.topics if each.name == topic), None)
        if about is None:
            raise ConnectionFailedError(f"a response does not contain topic {topic}")
        if about.error_code:
            raise BrokerError(about.error_code)
        return Metadata(
            {each.node_id: Address(each.host, each.port) for each in found.brokers},
            {each.partition_index: (each.error_code, each.leader_id) for each in about.partitions},
        )

    def _drop(self, address: Address) -> None:
        self._connections.pop(address).close()


def leader_of(found: Metadata, partition: int) -> Address:
    """Return the address of a partition's leader.

    Raises:
        BrokerError: The topic has no such partition, or the partition has no leader.
    """
    error, node = found.leaders.get(partition, (UNKNOWN_TOPIC, -1))
    if error not in (0, _REPLICA_NOT_AVAILABLE):
        raise BrokerError(error)
    if node not in found.brokers:
        raise BrokerError(LEADER_NOT_AVAILABLE)
    return found.brokers[node]
