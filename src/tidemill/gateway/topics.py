"""Answers questions about topics and groups. It changes nothing and creates nothing.

Must not know: HTTP's bytes.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from tidemill.confluent.clients import Kafka, has_answered, topic_id_text
from tidemill.confluent.configs import config_source, is_set
from tidemill.confluent.errors import error_in
from tidemill.gateway.errors import HttpError, from_kafka, unavailable, unknown_topic
from tidemill.gateway.guard import Turns

REQUEST_S = 5.0
"""How long a broker can take to answer."""
CLIENT = "tidemill-gateway"
FRESH_S = 5.0
"""How long it is believed that a topic exists."""
_KNOWN = 1000
_QUESTIONS = 8
"""The most requests to the brokers at the same time."""
_WAITING = 500
_VALID = re.compile(r"[A-Za-z0-9._-]{1,249}")

_ISOLATION = {True: IsolationLevel.READ_COMMITTED, False: IsolationLevel.READ_UNCOMMITTED}

SPECS: Any = OffsetSpec
"""Which offset is asked for. The types of confluent-kafka have no functions."""

T = TypeVar("T")
Place = tuple[str, int]
Offsets = Mapping[Place, int]
Bounds = tuple[Offsets, Offsets]
"""The first offsets and the ends of partitions."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists.

    Attributes:
        id: Tells it from an earlier topic of the same name; empty if the broker has no ids.
        partitions: The number of partitions.
    """

    name: str
    id: str
    partitions: int

    @property
    def places(self) -> list[Place]:
        """Its partitions."""
        return [(self.name, number) for number in range(self.partitions)]


def is_name(text: str) -> bool:
    """Return whether a topic can have a name."""
    return _VALID.fullmatch(text) is not None and text not in (".", "..")


class Catalog:
    """Asks the brokers about topics and groups. It belongs to one event loop.

    Args:
        admin: the client to ask with; by default a new one.
    """

    def __init__(self, kafka: Kafka, admin: AdminClient | None = None) -> None:
        self._admin = kafka.admin(CLIENT) if admin is None else admin  # an idle one is false
        self._has_answered = False
        self._known: OrderedDict[str, tuple[float, Topic]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Topic]] = {}
        self._turns = Turns(_QUESTIONS, _WAITING, "questions to the brokers are under way")

    async def topic(self, name: str) -> Topic:
        """Return a topic.

        Raises:
            HttpError: it does not exist (404), or no broker answers (503).
        """
        since, found = self._known.get(name, (0.0, None))
        if found is not None and time.monotonic() - since < FRESH_S:
            return found
        if not is_name(name):
            raise unknown_topic(f"topic {name[:249]!r}")
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.ensure_future(self._describe(name))
            task.add_done_callback(lambda _: self._asking.pop(name))
        return await asyncio.shield(task)

    async def _describe(self, name: str) -> Topic:
        found = (await self.described([name]))[name]
        if found is None:
            raise unknown_topic(f"topic {name}")
        return found

    async def described(self, names: Sequence[str]) -> dict[str, Topic | None]:
        """Ask the brokers about topics, also if they are known; None is one that does not exist.

        Raises:
            HttpError: no broker answers (503).
        """

        async def ask() -> dict[str, Topic | None]:
            futures = self._admin.describe_topics(
                TopicCollection([*names]), request_timeout=REQUEST_S
            )
            found: dict[str, Topic | None] = {}
            for name, future in futures.items():
                try:
                    about = await asyncio.wrap_future(future)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                    found[name] = None
                else:
                    found[name] = Topic(name, topic_id_text(about), len(about.partitions))
            return found

        found = await self._bounded(f"topic {names[0]}", ask)
        for name, topic in found.items():
            self._known.pop(name, None)
            if topic is not None:
                self._known[name] = time.monotonic(), topic
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return found

    async def names(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""

        async def ask() -> Any:
            return await asyncio.to_thread(self._admin.list_topics, timeout=REQUEST_S)

        found = await self._bounded("topics", ask)
        return {name: len(each.partitions) for name, each in sorted(found.topics.items())}

    async def offsets(
        self, places: Iterable[Place], spec: Any, *, committed: bool = True
    ) -> dict[Place, int]:
        """Return the offset of each partition that an ``OffsetSpec`` means; -1 for none.

        Args:
            committed: whether the end is the last stable offset, as readers see it.
        """
        asked = dict.fromkeys(places, spec)
        if not asked:
            return {}

        async def ask() -> dict[Place, int]:
            if not self._has_answered:
                await asyncio.to_thread(has_answered, self._admin, REQUEST_S)
                self._has_answered = True
            futures = self._admin.list_offsets(
                {TopicPartition(*place): each for place, each in asked.items()},
                isolation_level=_ISOLATION[committed],
                request_timeout=REQUEST_S,
            )
            return {
                (place.topic, place.partition): int((await asyncio.wrap_future(future)).offset)
                for place, future in futures.items()
            }

        return await self._bounded(f"topic {next(iter(asked))[0]}", ask)

    async def bounds(self, places: Sequence[Place], *, committed: bool = True) -> Bounds:
        """Return the first offset and the end of each partition; see ``offsets``."""
        starts = await self.offsets(places, SPECS.earliest())
        return starts, await self.offsets(places, SPECS.latest(), committed=committed)

    async def ranges(self, topic: Topic) -> list[tuple[int, int]]:
        """Return the first offset and the end offset of each partition."""
        places = topic.places
        starts, ends = await self.bounds(places, committed=False)
        return [(starts[place], ends[place]) for place in places]

    async def configs(self, name: str) -> list[dict[str, object]]:
        """Return the configs of a topic by name, each with its value and where that comes from.

        ``is_set`` is whether the value was chosen, and is not what every topic has.

        Raises:
            HttpError: the topic does not exist (404), or the user must not see its configs (403).
        """
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        found = await self._ask(
            f"topic {name}",
            lambda: self._admin.describe_configs([resource], request_timeout=REQUEST_S)[resource],
        )
        return [
            {
                "name": each.name,
                "value": None if each.is_sensitive else each.value,
                "source": config_source(each),
                "is_set": is_set(each),
            }
            for each in sorted(found.values(), key=lambda each: str(each.name))
        ]

    async def groups(self) -> list[dict[str, object]]:
        """Return all consumer groups."""
        found = await self._ask(
            "groups", lambda: self._admin.list_consumer_groups(request_timeout=REQUEST_S)
        )
        for error in found.errors:  # a list without those of one broker is not the list
            cause = error_in(error)
            raise from_kafka(cause, "groups") if cause else unavailable(f"groups: {error}")
        return [
            {"group": each.group_id, "state": each.state.name.lower()}
            for each in sorted(found.valid, key=lambda each: str(each.group_id))
        ]

    async def group(self, name: str) -> dict[str, object]:
        """Return a group: its state, and its lag on each partition that it has committed on.

        Raises:
            HttpError: it does not exist (404), or no broker answers (503).
        """
        about = await self._ask(
            f"group {name}",
            lambda: self._admin.describe_consumer_groups([name], request_timeout=REQUEST_S)[name],
        )
        wanted = [ConsumerGroupTopicPartitions(name)]
        answer = await self._ask(
            f"group {name}",
            lambda: self._admin.list_consumer_group_offsets(wanted, request_timeout=REQUEST_S)[
                name
            ],
        )
        committed = {
            (each.topic, each.partition): each.offset
            for each in answer.topic_partitions
            if each.offset >= 0
        }
        if not committed and about.state == ConsumerGroupState.DEAD:
            raise HttpError(404, "unknown_group", f"group {name} does not exist")
        existing = await self.names()
        there = [place for place in sorted(committed) if place[1] < existing.get(place[0], 0)]
        starts, ends = await self.bounds(there, committed=False)
        partitions = [
            {
                "topic": place[0],
                "partition": place[1],
                "committed": committed[place],
                "end": ends.get(place),
                "lag": max(0, ends[place] - max(committed[place], starts[place]))
                if place in ends
                else None,
            }
            for place in sorted(committed)
        ]
        return {
            "group": name,
            "state": about.state.name.lower(),
            "members": len(about.members),
            "lag": sum(each["lag"] or 0 for each in partitions),
            "partitions": partitions,
        }

    async def _ask(self, what: str, send: Callable[[], Any]) -> Any:
        async def ask() -> Any:
            return await asyncio.wrap_future(send())

        return await self._bounded(what, ask)

    async def _bounded(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """Run a request to the brokers; a few run at the same time."""
        try:
            async with self._turns.turn():
                return await ask()
        except KafkaException as error:
            raise from_kafka(error.args[0], what) from error
