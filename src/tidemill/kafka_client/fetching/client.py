"""Finds the leaders of partitions, and asks them for offsets.

Must not know: Spark, plans, Arrow.
"""

from __future__ import annotations

import time

from tidemill.kafka_client.brokers import Brokers, leader_of
from tidemill.kafka_client.connection import Connection
from tidemill.kafka_client.errors import BrokerError, ConnectionFailedError
from tidemill.kafka_client.fetching.settings import ClientSettings
from tidemill.kafka_client.settings import Address
from tidemill.kafka_codec.declared import FETCH, LIST_OFFSETS, needs

Partition = tuple[str, int]
EARLIEST, LATEST = -2, -1
"""Which offset of a partition is meant, as the timestamp of a ListOffsets request."""
NEEDS = {FETCH: (4, 10), **needs(LIST_OFFSETS)}


class Client:
    """The connections to the brokers of one cluster, for one range at a time.

    Attributes:
        settings: The settings.
        record_bytes: The latest bytes per offset, by topic.

    Raises:
        OSError: A certificate or key can't be read.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.record_bytes: dict[str, float] = {}
        self._brokers = Brokers(settings.connection, NEEDS)
        self._leaders: dict[Partition, Address] = {}
        self._known_topics: set[str] = set()

    def has_known(self, topic: str) -> bool:
        """Whether a partition of the topic had a leader."""
        return topic in self._known_topics

    def close(self) -> None:
        """Close all connections."""
        self._brokers.close()

    def rest(self) -> None:
        """Prepare for a time without requests: a response that is not needed is not received."""
        self._brokers.rest()

    def wake(self) -> None:
        """Forget connections that were closed meanwhile.

        A read that was given up gives its client back when Python collects it, which closes the
        sockets of the same cycle of objects.
        """
        self._brokers.drop_closed()

    def leader(self, topic: str, partition: int, timeout_s: float) -> Connection:
        """Return a connection to the leader of a partition.

        Raises:
            ConnectionFailedError: No broker can be reached.
            ConnectionRejectedError: The credentials or the TLS settings are wrong.
            BrokerError: The topic has no such partition, or no leader, or is forbidden.
        """
        deadline = time.monotonic() + timeout_s
        address = self._leaders.get((topic, partition))
        if address is None:
            address = leader_of(self._brokers.metadata(topic, deadline), partition)
            self._leaders[topic, partition] = address
            self._known_topics.add(topic)
        return self._brokers.at(address, deadline - time.monotonic())

    def forget(self, topic: str, partition: int, connection: Connection | None = None) -> None:
        """Ask for the leader again before the next request.

        Args:
            connection: A connection that can't be used any more.
        """
        self._leaders.pop((topic, partition), None)
        self._brokers.drop(connection)

    def offset(self, topic: str, partition: int, which: int, timeout_s: float) -> int:
        """Return the first or the end offset of a partition.

        Args:
            which: ``EARLIEST`` or ``LATEST``.

        Raises:
            ConnectionFailedError: The leader can't be reached.
            ConnectionRejectedError: The credentials or the TLS settings are wrong.
            BrokerError: The leader answers with an error.
        """
        connection = self.leader(topic, partition, timeout_s)
        partitions = [{"partition_index": partition, "timestamp": which}]
        request = {
            "replica_id": -1,
            "isolation_level": self.settings.read_committed,
            "topics": [{"name": topic, "partitions": partitions}],
        }
        found = connection.request(LIST_OFFSETS, request, timeout_s)
        for each in (each for about in found.topics for each in about.partitions):
            if each.error_code:
                raise BrokerError(each.error_code)
            offset: int = each.offset
            return offset
        raise ConnectionFailedError(f"a response does not contain topic {topic}")
