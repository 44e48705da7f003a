"""Find out whether a topic of a name is still the same one. Must not know: a kind of bridge."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from tidemill.confluent.clients import REQUEST_S, topic_id_text
from tidemill.connect.direct.contract import Place
from tidemill.connect.direct.errors import TopicGoneError
from tidemill.errors import UnreachableError

_WAIT_S = 0.1


class Described(NamedTuple):
    """A topic: its id (its name, where brokers give no ids), and the numbers of its partitions."""

    id: str
    partitions: list[int]


class Identity:
    """Tells which topic has a name, because one that is created again is another one."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._admin = place.kafka.admin(place.client)

    def ask(self) -> Future[Any]:
        """Ask for the topic, without waiting. ``described`` takes the answer."""
        asked = TopicCollection([self._place.topic])
        found: Future[Any] = self._admin.describe_topics(asked, request_timeout=REQUEST_S)[
            self._place.topic
        ]
        return found

    def described(self, asked: Future[Any]) -> Described:
        """Wait for an answer and return it.

        Raises:
            TopicGoneError: the topic does not exist.
            UnreachableError: no broker answers.
        """
        topic, kafka = self._place.topic, self._place.kafka
        try:
            found = asked.result(2 * REQUEST_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise kafka.translate(error.args[0], f"describe topic {topic}") from error
            raise TopicGoneError(
                f"topic {topic} does not exist", hint=f"Create it: tidemill topic create {topic}"
            ) from error
        name = topic_id_text(found)
        return Described(
            topic if set(name) <= {"A"} else name, [int(each.id) for each in found.partitions]
        )

    def still(
        self, topic_id: str, stop: threading.Event, asked: Future[Any] | None = None
    ) -> Described | None:
        """Wait until a broker says what the topic is; return None if the event is set before.

        Args:
            topic_id: the id that it must have.
            asked: a question that is under way.

        Raises:
            TopicGoneError: it was created again, or does not exist.
        """
        asked = asked or self.ask()
        while not stop.is_set():
            try:
                asked.exception(_WAIT_S)
                found = self.described(asked)
            except FutureTimeoutError:
                continue
            except UnreachableError:
                asked = self.ask()
                continue
            if found.id != topic_id:
                raise TopicGoneError(f"topic {self._place.topic} was created again")
            return found
        return None

    def __call__(self) -> str:
        """Return the topic's id, with the errors of ``described``."""
        return self.described(self.ask()).id
