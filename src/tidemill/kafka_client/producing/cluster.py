"""The connections of one sink to a cluster, and what is known of its topics.

Responses to Produce come while the next records are encoded, so other requests have connections of
their own. Must not know: records, transactions, Spark.
"""

from __future__ import annotations

import time

from tidemill.kafka_client.brokers import LEADER_NOT_AVAILABLE, Brokers, Metadata
from tidemill.kafka_client.errors import BrokerError
from tidemill.kafka_client.producing.settings import ProducerSettings
from tidemill.kafka_codec.declared import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END_TRANSACTION,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    PRODUCE,
    needs,
)

_KNOWN_S = 300.0
"""A topic can get more partitions, so it is asked for again after as long as with librdkafka."""

_NEEDS = {
    PRODUCE: (3, 7),
    **needs(INIT_PRODUCER_ID, FIND_COORDINATOR, ADD_PARTITIONS, END_TRANSACTION),
    **needs(ADD_OFFSETS, COMMIT_OFFSETS, OFFSET_FETCH),
}
"""All of these versions work without transaction.version 2, which Apache Kafka 4 leaves to the
client."""


class Cluster:
    """The connections, for one user at a time.

    Attributes:
        data: Connections for records.
        control: Connections for all other requests.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self.data = Brokers(settings.connection, _NEEDS)
        self.control = Brokers(settings.connection, _NEEDS)
        self._create = settings.create
        self._topics: dict[str, tuple[Metadata, float]] = {}

    def close(self) -> None:
        """Close all connections."""
        self.data.close()
        self.control.close()

    def rest(self) -> None:
        """Prepare for a time without requests."""
        self.data.rest()
        self.control.rest()

    def topic(self, name: str, deadline: float) -> Metadata:
        """Return the leaders of a topic, as they were known lately.

        Args:
            deadline: When to give up, on the monotonic clock.
        """
        known = self._topics.get(name)
        if known is not None and time.monotonic() - known[1] < _KNOWN_S:
            return known[0]
        found = self.control.metadata(name, deadline, create=self._create)
        if not found.leaders:
            raise BrokerError(LEADER_NOT_AVAILABLE)
        self._topics[name] = found, time.monotonic()
        return found

    def forget(self, topic: str) -> None:
        """Ask for a topic again before it is used."""
        self._topics.pop(topic, None)
