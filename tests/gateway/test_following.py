"""GET of topics as server-sent events: each record once, over breaks of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewPartitions

from tests.gateway.conftest import producer_of
from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import poll_until
from tests.support.topics import remove_before
from tidemill.confluent.clients import Kafka
from tidemill.gateway import following, reading, streaming
from tidemill.gateway.errors import HttpError
from tidemill.gateway.following import Hub, Tail
from tidemill.gateway.topics import Catalog, Place, Topic
from tidemill.gateway.users import Users

STREAM = {"accept": "text/event-stream"}


@dataclass
class Event:
    """A server-sent event, as the HTML standard parses it."""

    kind: str = "message"
    id: str = ""
    data: str = ""

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.data)
        return found


@dataclass
class Source:
    """A client as a browser's EventSource: it keeps the last id."""

    http: httpx.Client
    path: str
    last_id: str = ""
    comments: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def events(self) -> Iterator[Iterator[Event]]:
        headers = {**STREAM, **({"last-event-id": self.last_id} if self.last_id else {})}
        with self.http.stream("GET", self.path, headers=headers) as answer:
            if answer.status_code != 200:
                answer.read()
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            yield self._parse(answer.iter_lines())

    def _parse(self, lines: Iterator[str]) -> Iterator[Event]:
        event = Event()
        for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                self.last_id = event.id or self.last_id
                if event.data:
                    yield event
                event = Event()
            elif not name:
                self.comments += 1
            elif name == "event":
                event.kind = value
            elif name == "id":
                event.id = value
            elif name == "data":
                event.data = value
            else:
                assert name == "retry"


def produce(kafka: Kafka, topic: str, count: int, first: int = 0, **more: Any) -> None:
    producer = producer_of(kafka.servers)
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number, **{"partition": number % 2, **more})
    assert producer.flush(30) == 0


def take(events: Iterator[Event], count: int) -> list[Event]:
    return [next(events) for _ in range(count)]


def numbers(events: list[Event]) -> list[int]:
    return [int(each.json["value"]) for each in events]


def test_records_of_all_partitions_come_as_they_are_written(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    produce(kafka, topic, 4)
    source = Source(http, f"/topics/{topic}")
    with source.events() as events:
        produce(kafka, topic, 10, first=4)
        found = take(events, 10)
    assert sorted(numbers(found)) == list(range(4, 14))
    assert {each.kind for each in found} == {"message"}
    assert found[0].json.keys() == {
        *("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    }


def test_a_client_that_breaks_off_and_resumes_gets_each_record_once_and_in_order(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    chance, total = random.Random(7), 1500
    source = Source(http, f"/topics/{topic}?from=beginning")
    produce(kafka, topic, 300)
    writing = threading.Thread(target=produce, args=(kafka, topic, total - 300, 300))
    writing.start()
    found: list[Event] = []
    while len(found) < total:
        with source.events() as events:
            found += take(events, min(total - len(found), chance.choice((1, 2, 50, 400))))
    writing.join()
    assert sorted(numbers(found)) == list(range(total))
    for partition in range(2):
        offsets = [e.json["offset"] for e in found if e.json["partition"] == partition]
        assert offsets == sorted(offsets)


def test_a_break_before_the_first_record_loses_nothing(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    source = Source(http, f"/topics/{topic}")
    with source.events() as events:
        lines = threading.Thread(target=lambda: next(events, None), daemon=True)
        lines.start()
        poll_until(lambda: bool(source.last_id), 30, "the first id")
        produce(kafka, topic, 1)
        lines.join(30)
    source.last_id = source.last_id.split(";")[0] + ";0,0"
    with source.events() as events:
        assert numbers(take(events, 1)) == [0]


def test_many_clients_follow_a_topic_each_from_its_own_position(
    http: httpx.Client, kafka: Kafka, topic: str, gateway: GatewayProcess
) -> None:
    produce(kafka, topic, 100)
    limits = httpx.Limits(max_connections=None)
    results: dict[int, list[int]] = {}

    def follow(start: int, client: httpx.Client) -> None:
        source = Source(client, f"/topics/{topic}", last_id=f"{prefix};{start},{start}")
        with source.events() as events:
            results[start] = numbers(take(events, 200 - 2 * start))

    with httpx.Client(base_url=gateway.url, timeout=60, limits=limits, trust_env=False) as many:
        source = Source(http, f"/topics/{topic}?from=0")
        with source.events() as events:
            prefix = next(events).id.split(";")[0]
        threads = [threading.Thread(target=follow, args=(n, many)) for n in range(40)]
        for thread in threads:
            thread.start()
        produce(kafka, topic, 100, first=100)
        for thread in threads:
            thread.join(60)
    assert {start: sorted(found) for start, found in results.items()} == {
        start: list(range(2 * start, 200)) for start in range(40)
    }


def test_records_that_retention_has_deleted_are_reported_as_lost(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    produce(kafka, topic, 10, partition=0)
    source = Source(http, f"/topics/{topic}?from=beginning")
    with source.events() as events:
        assert numbers(take(events, 2)) == [0, 1]
    remove_before(kafka.servers, topic, 6)
    with source.events() as events:
        reset, *rest = take(events, 5)
    assert (reset.kind, reset.json) == (
        "reset",
        {"reason": "records were deleted", "partition": 0, "from": 2, "to": 6},
    )
    assert numbers(rest) == [6, 7, 8, 9]
    with source.events() as events:
        produce(kafka, topic, 1, first=10, partition=0)
        assert numbers(take(events, 1)) == [10]


def test_a_log_that_is_shorter_than_a_client_has_read_is_reported(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    """As after a restore of a backup: what is written next must not be left out."""
    produce(kafka, topic, 10, partition=0)
    source = Source(http, f"/topics/{topic}?from=beginning")
    with source.events() as events:
        assert numbers(take(events, 10)) == [*range(10)]
    source.last_id = source.last_id.replace(";10,", ";1000,")
    with source.events() as events:
        reset = next(events)
        assert (reset.kind, reset.json) == (
            "reset",
            {"reason": "the log is shorter", "partition": 0, "from": 1000, "to": 10},
        )
        produce(kafka, topic, 1, first=10, partition=0)
        assert numbers(take(events, 1)) == [10]


def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    produce(kafka, topic, 10, partition=0)
    source = Source(http, f"/topics/{topic}?from=beginning")
    with source.events() as events:
        assert numbers(take(events, 10)) == list(range(10))
        kafka.delete_topics("tests", [topic])
        kafka.create_topics("tests", {topic: (1, {})})
        produce(kafka, topic, 12, first=50, partition=0)
        # Until the gateway sees it, the new topic's records at these offsets look like the next.
        reset = next(each for each in events if each.kind in ("reset", "end"))
        found = take(events, 12) if reset.kind == "reset" else []
    if reset.kind == "end":  # it was seen that the topic was not there for a moment
        with source.events() as events:
            reset, *found = take(events, 13)
    assert reset.json == {"reason": "the topic was created again"}
    assert numbers(found) == list(range(50, 62))
    with source.events() as events:
        produce(kafka, topic, 1, first=62, partition=0)
        assert numbers(take(events, 1)) == [62]


def test_partitions_that_are_added_are_followed_from_their_beginning(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    source = Source(http, f"/topics/{topic}")
    with source.events() as events:
        produce(kafka, topic, 2)
        take(events, 2)
        admin = kafka.admin("tests")
        (future,) = admin.create_partitions([NewPartitions(topic, 4)]).values()
        future.result(30)
        new = kafka.producer("tests")  # the others do not know the partition yet
        new.produce(topic, b"2", partition=3)
        assert new.flush(30) == 0
        assert numbers(take(events, 1)) == [2]
    assert source.last_id.split(";")[1] == "1,1,0,1"


def test_a_topic_that_is_deleted_ends_its_streams(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    source = Source(http, f"/topics/{topic}")
    with source.events() as events:
        produce(kafka, topic, 1)
        take(events, 1)
        kafka.delete_topics("tests", [topic])
        (end,) = [*events]
    assert (end.kind, end.json["error"]) == ("end", "unknown_topic")
    assert topic not in kafka.list_topics("tests")


def test_records_of_an_open_transaction_come_when_it_is_committed(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    producer = kafka.producer("tests", transactional_id=topic)
    producer.init_transactions(30)
    source = Source(http, f"/topics/{topic}?from=beginning")
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=0)
    producer.flush(30)
    with source.events() as events:
        produce(kafka, topic, 1, partition=1)
        assert numbers(take(events, 1)) == [0]
        producer.commit_transaction(30)
        assert numbers(take(events, 1)) == [1]


@pytest.mark.parametrize(
    "last_id", ["x", "abc;", "abc;1,", ";-1", "a;" + "9" * 30, "abcdefghi;1", "a;1" + ",1" * 3000]
)
def test_an_id_that_is_not_one_is_refused(http: httpx.Client, topic: str, last_id: str) -> None:
    answer = http.get(f"/topics/{topic}", headers={**STREAM, "last-event-id": last_id})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


def test_a_client_that_does_not_read_is_closed_and_costs_the_others_nothing(
    broker: BrokerProcess, kafka: Kafka, topic: str, tmp_path: Any
) -> None:
    with GatewayProcess(
        tmp_path, broker.bootstrap, settings={"gateway.slow_client_seconds": "1"}
    ) as gateway:
        slow = socket.create_connection(("127.0.0.1", gateway.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(
            f"GET /topics/{topic}?from=beginning HTTP/1.1\r\nHost: localhost\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        with httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as client:
            source = Source(client, f"/topics/{topic}")
            with source.events() as events:
                producer = kafka.producer("tests", linger_ms=5)
                for _ in range(300):
                    producer.produce(topic, b"x" * 50_000)
                    producer.poll(0)
                assert producer.flush(30) == 0
                assert len(take(events, 300)) == 300
        port = slow.getsockname()[1]
        process = psutil.Process(gateway.process.pid)
        poll_until(
            lambda: (
                not any(each.raddr and each.raddr.port == port for each in connections(process))
            ),
            60,
            "the gateway closes the connection",
        )
        slow.close()


def connections(process: psutil.Process) -> list[Any]:
    """Return the connections of a process."""
    return [each for each in process.net_connections() if each.raddr]


async def test_a_comment_keeps_an_idle_stream_open_until_its_client_has_gone(
    broker: BrokerProcess, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemill.gateway.app import topics
    from tidemill.gateway.parts import Parts
    from tidemill.gateway.settings import GatewaySettings

    monkeypatch.setattr(streaming, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(following, "_REST_S", 0.0)
    parts = Parts.start(kafka, GatewaySettings())
    sent: list[bytes] = []
    scope: Any = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": f"/topics/{topic}",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"accept", b"text/event-stream")],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        import asyncio

        await asyncio.sleep(0 if b":\n\n" in sent else 0.01)
        if sent.count(b":\n\n") < 3:
            return {"type": "http.request", "body": b"", "more_body": True}
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await topics(parts, Users(parts, frozenset()))(scope, receive, send)
    assert sent.count(b":\n\n") >= 3
    async with asyncio.timeout(10):
        while parts.hub._tails:  # no client follows the topic any more
            await asyncio.sleep(0)
    await parts.close()


async def test_a_fault_of_the_reader_ends_no_following(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter([True])

    def line_of(message: Message) -> bytes:
        if next(faults, False):
            raise ValueError("a fault")
        return reading.line_of(message)

    monkeypatch.setattr(following, "line_of", line_of)
    catalog = Catalog(kafka)
    hub, about = Hub(kafka, catalog), await catalog.topic(topic)
    async with asyncio.timeout(60):
        for is_fault in (True, False):
            async with hub.following(about) as (tail, changed):
                produce(kafka, topic, 10)
                while not (tail.gone if is_fault else sum(tail.position) == 20):
                    await changed.wait()
                    changed.clear()
        await hub.close()


async def test_topics_that_begin_together_have_the_limit_of_those_that_are_followed(
    kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PARTITIONS", 3)
    other = f"{topic}-other"
    kafka.create_topics("tests", {other: (2, {})})
    hub = Hub(kafka, Catalog(kafka))
    begun = (hub._tail(Topic(name, "", 2)) for name in (topic, other))
    found = await asyncio.gather(*begun, return_exceptions=True)
    assert [type(each) for each in found] == [Tail, HttpError]
    await hub.close()


async def test_events_with_long_ids_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id has the offsets of all partitions: with thousands, it is longer than its record."""

    class Stored:
        def __init__(self, offset: int) -> None:
            self._offset = offset

        def offset(self) -> int:
            return self._offset

    async def read(place: Place, offset: int, most: int, most_bytes: int) -> Any:
        return SimpleNamespace(records=[Stored(n) for n in range(offset, 100)], following=100)

    monkeypatch.setattr(streaming, "line_of", lambda _: b"{}\n")
    parts: Any = SimpleNamespace(pool=SimpleNamespace(read=read))
    stream = streaming._Stream(parts, Topic("t", "", 2000))
    stream.vector = [0] + [10**9] * 1999
    sent = []
    while stream.vector[0] < 100:
        sent.append(await stream._from_log(0))
    assert max(map(len, sent)) < streaming._EVENT_BYTES + 25_000
    found = re.findall(rb"id: ;(\d+),", b"".join(sent))
    assert [int(each) for each in found] == list(range(1, 101))
