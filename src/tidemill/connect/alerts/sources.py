"""Read what rules are about: metrics by HTTP and from ``tidemill.metrics``, and records of topics.

Must not know: what a rule makes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import TOPIC as METRICS
from tidemill.confluent.metrics import create_topic
from tidemill.confluent.reading import Follower, Partition, end_offsets, headers_of
from tidemill.connect.alerts.conditions import TopicCondition
from tidemill.connect.alerts.exposition import Series, names_in, series_in
from tidemill.connect.webhooks.lanes import Event
from tidemill.errors import TidemillError, UnreachableError
from tidemill.metrics import text
from tidemill.metrics.published import Published, decode, merged, without_replaced

CLIENT = "tidemill-alerts"
SCRAPE_S = 10.0
MOST_BYTES = 32 << 20
"""Bytes of one page of metrics that are read."""
_PATIENCE_S = 15.0
"""How long the start waits for records that do not come."""
_LOOK_S = 30.0
"""How often topics are looked for, and new partitions of them."""


@dataclass
class Scraped:
    """The metrics of one moment.

    Attributes:
        series: by name.
        names: all names that were there.
        problems: what went wrong, by URL.
    """

    series: dict[str, list[Series]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, page: str, wanted: Collection[str]) -> None:
        """Add a page in Prometheus's format."""
        self.names |= names_in(page)
        for each in series_in(page, wanted):
            self.series.setdefault(each.name, []).append(each)


class MetricPages:
    """Scrapes pages of metrics. Use it on one event loop, and ``close`` it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._session: aiohttp.ClientSession | None = None

    async def scrape(self, wanted: Collection[str]) -> Scraped:
        """Return the series with some names. Pages that can't be read are problems."""
        found = Scraped()
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=SCRAPE_S)
            self._session = aiohttp.ClientSession(timeout=timeout, trust_env=False)
        session = self._session
        pages = await asyncio.gather(*(_page(session, url) for url in self._urls))
        for url, (page, problem) in zip(self._urls, pages, strict=True):
            if problem:
                found.problems[url] = problem
            else:
                found.add(page, wanted)
        return found

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()


async def _page(session: aiohttp.ClientSession, url: str) -> tuple[str, str]:
    """Return a page and no problem, or the problem."""
    try:
        async with session.get(url) as answer:
            if answer.status != 200:
                return "", f"status {answer.status}"
            data = b""
            async for chunk in answer.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > MOST_BYTES:
                    return "", f"it has more than {MOST_BYTES:,} bytes"
    except TimeoutError:
        return "", f"no answer within {SCRAPE_S:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return "", str(error) or type(error).__name__
    return data.decode(errors="replace"), ""


class WorkerMetrics:
    """The metrics that workers publish. One thread uses it at a time; ``close`` it.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka) -> None:
        create_topic(kafka)
        self._kafka = kafka
        self._follower = Follower.of(kafka, CLIENT, [(METRICS, 0)], "read_uncommitted")
        self._processes: dict[bytes, Published] = {}

    def catch_up(self) -> None:
        """Read what there is now. Without it, series would be absent, and alerts on them would end.

        Raises:
            UnreachableError: no broker answers.
        """
        ends = end_offsets(self._kafka, CLIENT, METRICS)
        with contextlib.suppress(KafkaException):  # the user must not read it
            for message in self._follower.to_end(ends):
                self._apply(message)

    def _apply(self, message: Message) -> None:
        value = message.value()
        made = None if value is None else decode(value)
        if made is None:
            self._processes.pop(message.key() or b"", None)
        else:
            self._processes[message.key() or b""] = made

    def page(self) -> str:
        """Return the metrics of all processes in Prometheus's format."""
        with contextlib.suppress(KafkaException):  # the broker can be back at the next call
            while records := self._follower.take(0.05):
                for each in records:
                    self._apply(each)
        processes = without_replaced(list(self._processes.values()))
        families = merged(processes, time.time_ns() // 1_000_000)
        return "".join(text.write(families, text.PROMETHEUS))

    def close(self) -> None:
        """Close the client."""
        self._follower.close()


@dataclass
class _Followed:
    """A rule on a topic, and from which offsets on it takes records."""

    condition: TopicCondition
    starts: dict[Partition, int] = field(default_factory=dict)


class TopicRecords:
    """The records of the topics that rules are about. One thread uses it at a time.

    Args:
        conditions: by name of the rule, its topic and its condition.
        stored: positions of rules whose records are alerts, from an earlier process.

    Attributes:
        problems: by topic, why it can't be read. It is a problem of its rules, and not of others.
    """

    def __init__(
        self,
        kafka: Kafka,
        conditions: Mapping[str, tuple[str, TopicCondition]],
        stored: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._kafka = kafka
        self._stored = stored
        self._by_topic: dict[str, dict[str, _Followed]] = {}
        for name, (topic, condition) in conditions.items():
            self._by_topic.setdefault(topic, {})[name] = _Followed(condition)
        self._follower: Follower | None = None
        self._looked_at = 0.0
        self._is_first = True
        self._refused = self._late = ""
        self.problems: dict[str, str] = {}

    def poll(self) -> bool:
        """Take over records that have arrived; return whether there were any.

        Raises:
            UnreachableError: no broker answers.
            TidemillError: a topic can't be read.
        """
        if not self._by_topic:
            return False
        if time.monotonic() - self._looked_at > _LOOK_S:
            self._look()
        if self._follower is None:
            return False
        try:
            records = self._follower.take(0)
        except KafkaException as error:
            failed: KafkaError = error.args[0]
            if failed.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise self._kafka.translate(failed, "read topics of alerts") from error
            self._refused = f"can't read all topics: {failed.str()}"
            return False
        now_ms = time.time_ns() // 1_000_000
        for message in records:
            self._take(message, now_ms)
        if records:
            self._late = ""
        return bool(records)

    def catch_up(self, go_on: Callable[[], bool]) -> None:
        """Take over all records that the topics have now, while ``go_on`` says so.

        A partition that can't be read does not keep the rules on others from starting.
        """
        self.poll()
        if self._follower is None:
            return
        places = list(self._follower.positions)
        ends = self._kafka.end_offsets(CLIENT, places, committed=True)
        deadline = time.monotonic() + _PATIENCE_S
        while go_on() and not (self._refused or self._late) and self._follower.behind(ends):
            if self.poll():
                deadline = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > deadline:
                topic, number = self._follower.behind(ends)[0]
                self._late = f"topic {topic} partition {number} can't be read to its end"
            else:
                time.sleep(0.01)

    def _take(self, message: Message, now_ms: int) -> None:
        place = str(message.topic()), int(message.partition() or 0)
        offset = int(message.offset() or 0)
        event = Event(
            place[1],
            offset,
            int(message.timestamp()[1]),
            message.key(),
            message.value(),
            tuple(headers_of(message)),
        )
        for rule in self._by_topic.get(place[0], {}).values():
            if offset >= rule.starts.get(place, 0):
                rule.condition.add(event, now_ms)

    def _look(self) -> None:
        """Follow topics and partitions that are there now."""
        self._looked_at = time.monotonic()
        admin = self._kafka.admin(CLIENT)
        starts: dict[Partition, int] = {}
        self.problems = {}
        known = set() if self._follower is None else set(self._follower.positions)
        for topic, rules in self._by_topic.items():
            try:
                places = self._kafka.partitions(CLIENT, topic, admin)
            except UnreachableError:
                raise
            except TidemillError as error:  # the user must not see it
                self.problems[topic] = str(error)
                continue
            if not places:
                self.problems[topic] = f"topic {topic} does not exist"
            if new := [place for place in places if place not in known]:
                for name, rule in rules.items():
                    self._begin(name, rule, new, admin)
                starts |= {
                    place: min(rule.starts[place] for rule in rules.values()) for place in new
                }
        self._is_first = False
        if self._follower is None and starts:
            self._follower = Follower.of(
                self._kafka,
                CLIENT,
                starts,
                starts=starts,
                queued_max_messages_kbytes=16_384,
                fetch_wait_max_ms=100,
            )
        elif self._follower is not None and starts:
            self._follower.add(starts)

    def _begin(
        self, name: str, rule: _Followed, places: list[Partition], admin: AdminClient
    ) -> None:
        """Decide from which offsets on a rule takes records."""
        if not self._is_first:  # a topic or a partition that is new
            rule.starts |= dict.fromkeys(places, 0)
            return
        if rule.condition.is_events:
            stored = self._stored.get(name, {})
            rule.starts |= {place: stored.get(str(place[1]), 0) for place in places}
            return
        since_ms = time.time_ns() // 1_000_000 - rule.condition.window_ms
        found = self._kafka.offsets_since(CLIENT, places, since_ms, admin)
        ends = self._kafka.end_offsets(CLIENT, places, admin=admin)
        rule.starts |= {
            place: found[place] if found[place] >= 0 else ends[place] for place in places
        }

    def problem_of(self, topic: str) -> str:
        """Return why a topic can't be read; empty: it can."""
        return self.problems.get(topic) or self._refused or self._late

    def positions(self, topic: str) -> dict[str, int]:
        """Return the offsets behind what was read of a topic, by partition."""
        positions = {} if self._follower is None else self._follower.positions
        return {
            str(number): offset for (name, number), offset in positions.items() if name == topic
        }

    def close(self) -> None:
        """Close the client."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None
