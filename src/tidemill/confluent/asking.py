"""Ask what topics there are, and which offsets they have, through one client that is kept.

A new client takes tens of milliseconds, and a second with a token: then our own client asks. Must
not know: records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tidemill.confluent.clients import Kafka
from tidemill.confluent.token_asking import TokenQuestions
from tidemill.kafka_client.admin.partitions import EARLIEST, LATEST

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of a partition: the first one, and the one behind the last committed record."""

    first: int
    end: int


class TopicQuestions:
    """Asks about topics. Each answer is as of the question.

    Args:
        kafka: the cluster.
        client: the client id.
    """

    def __init__(self, kafka: Kafka, client: str) -> None:
        self._kafka, self._client = kafka, client
        self._own = TokenQuestions(kafka, client) if "oauth_cb" in kafka.properties else None

    @cached_property
    def _admin(self) -> AdminClient:
        return self._kafka.admin(self._client)

    def names(self) -> set[str]:
        """Return the names of all topics.

        Raises:
            UnreachableError: no broker answers.
        """
        if self._own is not None:
            return self._own.names()
        return self._kafka.list_topics(self._client, self._admin)

    def identity(self, topic: str) -> str | None:
        """Return the id of a topic as ``Kafka.topic_id`` does; None if it does not exist."""
        return self._kafka.topic_id(self._client, topic, self._admin)

    def extents(self, topic: str) -> dict[int, Extent]:
        """Return the offsets of each partition, by number; none if the topic does not exist.

        Raises:
            TidemillError: the broker refuses, e.g. because the name is invalid.
            UnreachableError: no broker answers.
        """
        places = self._places(topic)
        if self._own is not None:
            first = self._own.offsets(places, EARLIEST)
        else:
            first = self._kafka.start_offsets(self._client, places, self._admin)
        end = self._ends(places)
        return {
            place[1]: Extent(first[place], max(first[place], end[place]))
            for place in sorted(places)
        }

    def ends(self, topic: str) -> dict[int, int]:
        """Return the offset behind the last committed record of each partition, by number."""
        return {place[1]: end for place, end in self._ends(self._places(topic)).items()}

    def identified_ends(self, topic: str) -> tuple[str | None, dict[int, int]]:
        """Return what ``identity`` returns, and what ``ends`` did immediately after that."""
        if self._own is not None:
            return self.identity(topic), self.ends(topic)
        id_, places = self._kafka.identified(self._client, topic, self._admin)
        return id_, {place[1]: end for place, end in self._ends(places).items()}

    def since(self, topic: str, numbers: Iterable[int], time_ms: int) -> dict[int, int]:
        """Return the first offset from a time on, or -1, of some partitions, by number.

        Args:
            time_ms: milliseconds since the epoch.
        """
        places, time_ms = [(topic, number) for number in numbers], max(0, time_ms)
        if self._own is not None:
            found = self._own.offsets(places, time_ms)
        else:
            found = self._kafka.offsets_since(self._client, places, time_ms, self._admin)
        return {place[1]: offset for place, offset in found.items()}

    def _places(self, topic: str) -> list[tuple[str, int]]:
        if self._own is not None:
            return self._own.places(topic)
        return self._kafka.partitions(self._client, topic, self._admin)

    def _ends(self, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if self._own is not None:
            return self._own.offsets(places, LATEST, committed=True)
        return self._kafka.end_offsets(self._client, places, committed=True, admin=self._admin)
