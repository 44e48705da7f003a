"""Reads the demo's topics for its page, while someone looks. Must not know: HTTP, a map."""

from __future__ import annotations

import contextlib
import threading
import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower, Partition
from tidemill.demo.events import ARRIVALS, DEPARTURES
from tidemill.demo.page.live import TOPICS, Live
from tidemill.errors import TidemillError

IDLE_S = 60.0
"""How long the topics are read on without a viewer."""
_LOOK_S = 2.0
"""How often it is looked for topics that were missing."""
_POLL_S, _RETRY_S = 0.1, 1.0
_CLIENT = "tidemill-demo-page"
NO_DEMO = "The demo is not running here. Start it: tidemill demo"
_SENT = (DEPARTURES, ARRIVALS)


class Following:
    """Follows the topics in a thread, from their beginning on, until no one has looked for a while.

    Attributes:
        live: what was read. It is another object after the topics were created again.
    """

    def __init__(self, kafka: Kafka) -> None:
        self.live = Live()
        self._kafka = kafka
        self._looked_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-page", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the topics are still read."""
        return not self._ended.is_set()

    def look(self) -> Live:
        """Return what was read so far, and note that someone looks."""
        self._looked_at = time.monotonic()
        return self.live

    def stop(self) -> None:
        """End the thread soon."""
        self._looked_at = -IDLE_S

    def _is_idle(self) -> bool:
        return time.monotonic() - self._looked_at > IDLE_S

    def _run(self) -> None:
        try:
            while not self._is_idle():
                try:
                    self._follow()
                except KafkaException as error:
                    self._restart(error.args[0].str())
                except TidemillError as error:
                    self._restart(str(error))
        finally:
            self._ended.set()

    def _restart(self, problem: str) -> None:
        """Begin with nothing: the topics are others now, or no broker answers."""
        live = Live()
        live.fail(problem)
        self.live = live
        until = time.monotonic() + _RETRY_S
        while time.monotonic() < until and not self._is_idle():
            self._ended.wait(_POLL_S)

    def _follow(self) -> None:
        """Follow the topics that are there, and the others as soon as they are.

        Return when the topic of departures was deleted or created again: its offsets don't tell.

        Raises:
            KafkaException: a topic can't be read.
            TidemillError: no broker answers.
        """
        live, looked = self.live, -_LOOK_S
        admin = self._kafka.admin(_CLIENT)
        identity: str | None = None
        with contextlib.closing(Follower.of(self._kafka, _CLIENT, (), reset="error")) as topics:
            while not self._is_idle():
                if time.monotonic() - looked > _LOOK_S:
                    looked = time.monotonic()
                    if identity is None:
                        identity = self._kafka.topic_id(_CLIENT, DEPARTURES, admin)
                    elif self._kafka.topic_id(_CLIENT, DEPARTURES, admin) != identity:
                        self._restart("")
                        return
                    if len({topic for topic, _ in topics.positions}) < len(TOPICS):
                        topics.add(self._missing(topics, admin))
                    live.fail("" if topics.positions else NO_DEMO)
                for message in topics.poll(_POLL_S):
                    _, time_ms = message.timestamp()
                    live.take(str(message.topic()), message.value() or b"", time_ms)

    def _missing(self, topics: Follower, admin: AdminClient) -> dict[Partition, int]:
        """Return where partitions begin that are not followed yet, if there are reports."""
        found = {topic: self._kafka.partitions(_CLIENT, topic, admin) for topic in TOPICS}
        if not all(found[topic] for topic in _SENT):
            return {}
        places = [each for part in found.values() for each in part if each not in topics.positions]
        return self._kafka.start_offsets(_CLIENT, places)
