"""A topic published with ZeroMQ, over a broker: late subscribers, gaps, kills."""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import pytest
import zmq
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.connect.direct.conftest import Direct, Running
from tests.connect.direct.zeromq_follower import lines
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.invalid_headers import send_with_invalid_name
from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess, poll_until
from tests.support.spans import recorded
from tests.support.topics import remove_before
from tests.support.worker_process import WorkerProcess
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import ExtractReader
from tidemill.connect.base.board import BoardWriter, create_topic
from tidemill.connect.base.definitions import parse
from tidemill.connect.direct.contract import Counts, Place
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import DefinitionError
from tidemill.connect.direct.identity import Described
from tidemill.connect.direct.registry import check_options
from tidemill.connect.direct.topics import BRIDGES
from tidemill.connect.direct.zeromq import Published, ZeroMqBridge, _Live
from tidemill.connect.direct.zeromq_log import Wanted
from tidemill.direct.pubsub import (
    CurveClient,
    LogLost,
    LogRecord,
    LogRestarted,
    LogSubscriber,
    new_curve_keys,
)
from tidemill.direct.pubsub.blocks import BlockHead, decode_head


class Log:
    """A topic, and a bridge that publishes it."""

    def __init__(self, kafka: Kafka, partitions: int = 1, **configs: str) -> None:
        self.bridge = Direct(kafka, "zeromq")
        self.topic, self.kafka = self.bridge.topic, kafka
        kafka.create_topics("tests", {self.topic: (partitions, configs)})
        self.producer = Producer({"bootstrap.servers": kafka.servers, "linger.ms": 1})
        self.admin = AdminClient({"bootstrap.servers": kafka.servers})
        self.addresses = [f"tcp://127.0.0.1:{reserve_port()}" for _ in range(2)]

    def start(self, **options: object) -> None:
        publish, requests = self.addresses
        self.bridge.start(publish=publish, requests=requests, **options)

    def send(self, *values: bytes | None, key: bytes | None = b"k", **more: Any) -> None:
        for value in values:
            self.producer.produce(self.topic, value, key, **more)
        assert self.producer.flush(60) == 0

    def subscriber(self, **options: Any) -> LogSubscriber:
        return LogSubscriber(*self.addresses, **options)


@pytest.fixture
def log(kafka: Kafka) -> Iterator[Log]:
    made = Log(kafka)
    yield made
    made.bridge.stop()


@pytest.fixture
def two_partitions(kafka: Kafka) -> Iterator[Log]:
    made = Log(kafka, 2)
    yield made
    made.bridge.stop()


def records(
    subscriber: LogSubscriber, is_done: Callable[[list[LogRecord]], bool], timeout_s: float = 60
) -> list[LogRecord]:
    """Poll until it is done; return the records. Nothing may be lost."""
    found: list[LogRecord] = []
    deadline = time.monotonic() + timeout_s
    while not is_done(found):
        for event in subscriber.poll(0.1):
            assert isinstance(event, LogRecord), event
            found.append(event)
        assert time.monotonic() < deadline, (len(found), subscriber.positions)
    return found


def test_a_late_subscriber_gets_what_was_before_and_then_what_comes(log: Log) -> None:
    log.send(b"v", headers=[("h", b"x"), ("h", None)], timestamp=1_700_000_000_123)
    log.send(*(b"%d" % number for number in range(20_000)), None, b"", key=None)
    log.start()
    with log.subscriber() as subscriber:
        found = records(subscriber, lambda found: len(found) == 20_003)
        log.send(b"now")
        found += records(subscriber, lambda found: len(found) == 1)
        assert subscriber.is_live
    assert found[0] == (0, 0, 1_700_000_000_123, b"k", b"v", [("h", b"x"), ("h", None)])
    assert [each.offset for each in found] == list(range(20_004))
    values = [b"v", *(b"%d" % number for number in range(20_000)), None, b"", b"now"]
    assert [each.value for each in found] == values


def test_only_the_last_values_of_what_was_before_and_then_everything(two_partitions: Log) -> None:
    log = two_partitions
    for number in range(3000):
        value = b"%d" % number
        log.producer.produce(log.topic, value, b"k%d" % (number % 7), partition=number % 2)
    log.producer.produce(log.topic, None, b"k3", partition=0)
    log.producer.produce(log.topic, None, b"k3", partition=1)
    log.producer.produce(log.topic, b"without key", partition=0)
    assert log.producer.flush(60) == 0
    log.start()
    with log.subscriber(start="last-values") as subscriber:
        found = records(subscriber, lambda _: subscriber.is_live)
        by_partition = {
            number: [each for each in found if each.partition == number] for number in (0, 1)
        }
        for number, each in by_partition.items():
            expected = {b"k%d" % (value % 7): b"%d" % value for value in range(number, 3000, 2)}
            del expected[b"k3"]
            assert {row.key: row.value for row in each if row.key is not None} == expected
            assert [row.offset for row in each] == sorted(row.offset for row in each)
        assert [row.value for row in found if row.key is None] == [b"without key"]
        log.send(b"a", b"b", None, key=b"k1", partition=1)
        found = records(subscriber, lambda found: len(found) == 3)
    assert [each.value for each in found] == [b"a", b"b", None]


def test_each_batch_that_is_published_has_a_span_with_the_number_of_its_records(log: Log) -> None:
    log.start()
    with recorded() as spans, log.subscriber(start="latest") as subscriber:
        records(subscriber, lambda _: subscriber.is_live)
        log.send(b"a")
        records(subscriber, bool)
        poll_until(spans, 30, "the span of the batch has ended")
        ((name, made),) = spans().items()
    assert (name, made.kind.name) == (f"bridge {log.topic}", "PRODUCER")
    assert dict(made.attributes) == {"messaging.batch.message_count": 1}


def test_without_our_own_client_a_late_subscriber_gets_what_was_before(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some logins (Kerberos, for example) are known to librdkafka only."""
    monkeypatch.setenv("TIDEMILL_SOURCE_CLIENT", "librdkafka")
    log.send(b"v", headers=[("h", b"x"), ("h", None)], timestamp=1_700_000_000_123)
    log.send(*(b"%d" % number for number in range(6000)), None, b"", key=None)
    log.start(cache_bytes=0)
    with log.subscriber() as subscriber:
        found = records(subscriber, lambda found: len(found) == 6003)
    assert found[0] == (0, 0, 1_700_000_000_123, b"k", b"v", [("h", b"x"), ("h", None)])
    assert [each.offset for each in found] == list(range(6003))
    assert [each.value for each in found[-3:]] == [b"5999", None, b""]


def test_an_empty_topic_has_no_last_values_and_is_live(log: Log) -> None:
    log.start()
    with log.subscriber(start="last-values") as subscriber:
        assert records(subscriber, lambda _: subscriber.is_live) == []
        log.send(b"a")
        assert [each.value for each in records(subscriber, bool)] == [b"a"]


def test_a_subscriber_resumes_from_its_own_position_or_from_the_end(log: Log) -> None:
    log.start()
    with log.subscriber(start="latest") as subscriber:
        log.send(b"too early")
        records(subscriber, lambda _: subscriber.is_live)
        log.send(b"1", b"2")
        values = [each.value for each in records(subscriber, lambda found: len(found) >= 2)]
        positions = subscriber.positions
    assert values[-2:] == [b"1", b"2"]
    log.send(b"3", b"4")
    stored = json.loads(json.dumps(positions))
    with log.subscriber(start=stored) as subscriber:
        log.send(b"5")
        found = records(subscriber, lambda found: len(found) == 3)
    assert [each.value for each in found] == [b"3", b"4", b"5"]


def test_headers_that_no_block_can_have_are_left_out_and_the_others_arrive(log: Log) -> None:
    log.start()
    log.send(b"v", headers=[("h" * 70_000, b"x"), ("i", b"y")])
    log.send(b"w", headers=[(f"{number}", b"") for number in range(70_000)])
    with log.subscriber() as subscriber:
        send_with_invalid_name(log.kafka, log.topic)
        log.send(b"last")
        found = records(subscriber, lambda found: len(found) == 4)
    log.bridge.stop()
    log.start()  # now they come from the log
    with log.subscriber() as subscriber:
        late = records(subscriber, lambda found: len(found) == 4)
    for each in found, late:
        assert [row.value for row in each] == [b"v", b"w", b"named", b"last"]
        assert [len(row.headers) for row in each[:2]] == [1, 65_535]
        assert each[0].headers == [("i", b"y")]


def test_markers_and_aborted_records_are_neither_delivered_nor_losses(log: Log) -> None:
    log.start()
    producer = Producer({"bootstrap.servers": log.kafka.servers, "transactional.id": log.topic})
    producer.init_transactions()
    with log.subscriber() as subscriber:
        expected = []
        for number in range(6):
            producer.begin_transaction()
            for each in range(3):
                producer.produce(log.topic, b"%d-%d" % (number, each))
            producer.flush(30)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected += [b"%d-%d" % (number, each) for each in range(3)]
        found = records(
            subscriber, lambda _: subscriber.is_live and subscriber.positions[0].offset == 24
        )
    assert [each.value for each in found] == expected


def test_a_slow_subscriber_misses_blocks_and_gets_them_from_the_log(log: Log) -> None:
    log.start(queue_size=1, cache_bytes=100_000)
    with log.subscriber(queue_size=1) as subscriber:
        records(subscriber, lambda _: subscriber.is_live)
        for number in range(200):  # far more than the buffers of the sockets hold
            log.producer.produce(log.topic, b"%d" % number + b"x" * 100_000)
        assert log.producer.flush(60) == 0
        log.bridge.wait(lambda: log.bridge.counts.delivered == 200, "all are published")
        found = records(subscriber, lambda found: len(found) == 200)
        assert subscriber.recovered > 100
    assert [each.offset for each in found] == list(range(200))


def test_below_the_start_of_the_log_the_loss_is_reported_once(log: Log) -> None:
    log.send(*(b"%d" % number for number in range(100)))
    remove_before(log.kafka.servers, log.topic, 60)
    log.start()
    with log.subscriber() as subscriber:  # from the beginning: nothing was promised below
        found = records(subscriber, lambda found: len(found) == 40)
        session = subscriber.positions[0].session
    assert found[0].offset == 60
    with log.subscriber(start={0: (session, 10)}) as subscriber:
        events: list[object] = []
        deadline = time.monotonic() + 60
        while len(events) < 41:
            events += subscriber.poll(0.1)
            assert time.monotonic() < deadline
    assert events[0] == LogLost(0, 10, 50)
    assert all(isinstance(each, LogRecord) for each in events[1:])


def test_a_topic_that_is_created_again_is_another_session(log: Log) -> None:
    log.start()
    with log.subscriber() as subscriber:
        log.send(b"old", b"old")
        records(subscriber, lambda found: len(found) == 2)
        log.admin.delete_topics([log.topic])[log.topic].result(30)
        log.admin.create_topics([NewTopic(log.topic, 1, 1)])[log.topic].result(30)
        log.send(b"new")
        events: list[object] = []
        deadline = time.monotonic() + 60
        while not any(isinstance(each, LogRecord) for each in events):
            events += subscriber.poll(0.5)
            assert time.monotonic() < deadline
    restarted, new = events
    assert isinstance(restarted, LogRestarted)
    assert restarted.position.offset == 0
    assert isinstance(new, LogRecord)
    assert (new.offset, new.value) == (0, b"new")


def test_partitions_that_are_added_later_are_followed_from_their_beginning(log: Log) -> None:
    log.start()
    with log.subscriber(start="latest") as subscriber:
        records(subscriber, lambda _: subscriber.is_live)
        log.admin.create_partitions([NewPartitions(log.topic, 3)])[log.topic].result(30)
        log.producer.poll(0)
        producer = Producer({"bootstrap.servers": log.kafka.servers})
        producer.produce(log.topic, b"early", partition=2)
        assert producer.flush(60) == 0
        found = records(subscriber, bool)
    assert [(each.partition, each.offset, each.value) for each in found] == [(2, 0, b"early")]


def test_a_program_with_pyzmq_alone_reads_blocks_and_asks(log: Log) -> None:
    """The docstring of the module ``blocks`` is enough to take part."""
    log.send(b"before", key=None)
    log.start()
    with (
        zmq.Context() as context,
        context.socket(zmq.SUB) as live,
        context.socket(zmq.DEALER) as asking,
    ):
        live.connect(log.addresses[0])
        live.subscribe(b"0/")
        asking.connect(log.addresses[1])
        asking.send(struct.pack(">2sBBIIQ", b"tr", 1, 1, 77, 0, 0))
        assert asking.poll(30_000)
        number, block = asking.recv_multipart()
        assert (number, value_of(block)) == (struct.pack(">I", 77), b"before")
        deadline = time.monotonic() + 30
        while not live.poll(100):  # until the subscription is known
            log.send(b"now", key=None)
            assert time.monotonic() < deadline
        channel, block = live.recv_multipart()
        assert (channel, value_of(block)) == (b"0/", b"now")


def value_of(block: bytes) -> bytes:
    """Return the value of a block of one record without a key and headers."""
    magic, version, flags, _, partition, first, following, count = struct.unpack_from(
        ">2sBBQIQQI", block
    )
    assert (magic, version, flags, partition, count) == (b"tb", 1, 0, 0, 1)
    offset, _, key, value = struct.unpack_from(">QqiI", block, 36)
    assert (first <= offset < following, key, 60 + value) == (True, -1, len(block))
    return block[60:]


def test_invalid_requests_are_counted_and_do_no_harm(log: Log) -> None:
    log.send(b"v")
    log.start()
    good = struct.pack(">2sBBIIQ", b"tr", 1, 1, 1, 0, 0)
    bad = [
        b"",
        b"x" * 20,
        good[:-1],
        good + b"x",
        struct.pack(">2sBBIIQ", b"tr", 1, 9, 1, 0, 0),  # an unknown kind
        struct.pack(">2sBBIIQ", b"tr", 1, 1, 1, 2**32 - 1, 0),  # an unknown partition
    ]
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.connect(log.addresses[1])
        for each in bad:
            asking.send(each)
        asking.send_multipart([good, b"more"])
        asking.send(struct.pack(">2sBBIIQ", b"tr", 1, 1, 5, 0, 2**64 - 1))
        assert asking.poll(30_000)
        number, block = asking.recv_multipart()
        assert number == struct.pack(">I", 5)
        assert struct.unpack_from(">QQI", block, 16) == (1, 1, 0)  # that is the end
    log.bridge.wait(lambda: log.bridge.counts.refused == len(bad) + 1, "they are counted")


def test_requesters_that_never_read_cost_no_memory_and_delay_nobody(log: Log) -> None:
    """A hundred of them ask for all of the log again and again, and take no answer."""
    for number in range(40):
        log.producer.produce(log.topic, b"%d" % number + b"x" * 500_000)
    assert log.producer.flush(60) == 0
    log.start(cache_bytes=0)
    request = struct.pack(">2sBBIIQ", b"tr", 1, 1, 1, 0, 0)
    with zmq.Context() as context, contextlib.ExitStack() as opened:
        for _ in range(100):
            asking = opened.enter_context(context.socket(zmq.DEALER))
            asking.set(zmq.RCVHWM, 1)
            asking.set(zmq.LINGER, 0)
            asking.connect(log.addresses[1])
            for _ in range(200):
                with contextlib.suppress(zmq.Again):
                    asking.send(request, zmq.NOBLOCK)
        began = memory()
        with log.subscriber() as subscriber:
            found = records(subscriber, lambda found: len(found) == 40)
        assert [each.offset for each in found] == list(range(40))
        # Two answers of 512 KiB wait for each of them, and some are in its own queue.
        assert memory() - began < 300 << 20


def memory() -> int:
    """Return the resident memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_subscriber_that_hears_nothing_asks_and_gets_the_log(log: Log) -> None:
    """The address of what is published is wrong, for example behind a firewall."""
    log.start()
    nowhere = f"tcp://127.0.0.1:{reserve_port()}"
    with LogSubscriber(nowhere, log.addresses[1]) as subscriber:
        log.send(b"1")
        assert [each.value for each in records(subscriber, bool)] == [b"1"]
        log.send(b"2")
        assert [each.value for each in records(subscriber, bool)] == [b"2"]


def test_only_clients_with_an_allowed_key_subscribe(log: Log, tmp_path: Path) -> None:
    server, client, other = new_curve_keys(), new_curve_keys(), new_curve_keys()
    secret = tmp_path / "secret"
    secret.write_bytes(server.secret)
    log.start(
        curve_public=server.public.decode(),
        curve_secret=f"${{file:{secret}}}",
        curve_allowed=[client.public.decode()],
    )
    log.send(b"v")
    with log.subscriber(curve=CurveClient(client, server.public)) as subscriber:
        assert [each.value for each in records(subscriber, bool)] == [b"v"]
    with log.subscriber(curve=CurveClient(other, server.public)) as subscriber:
        assert subscriber.poll(0.3) == []
    with log.subscriber() as subscriber:
        assert subscriber.poll(0.3) == []


@pytest.mark.parametrize("given", ["curve_public", "curve_allowed", "curve_server"])
def test_keys_without_a_secret_one_are_an_error_and_not_a_bridge_without_encryption(
    given: str,
) -> None:
    key = new_curve_keys().public.decode()
    options = {
        "addresses": ["tcp://127.0.0.1:5558"],
        given: [key] if given == "curve_allowed" else key,
    }
    values = {"name": "a", "kind": "zeromq-in", "topic": "t", "options": options}
    with pytest.raises(DefinitionError, match=r"invalid (public|secret) key"):
        check_options(parse(Definition, values, DefinitionError, ""))


def test_a_manager_runs_it_and_names_an_address_that_can_not_be_used(running: Running) -> None:
    running.kafka.create_topics("tests", {running.topic: (1, {})})
    running.define("zeromq", publish="nowhere", requests="tcp://127.0.0.1:0")
    running.start()
    assert "can't bind nowhere" in running.wait_for_phase("failed")["error"]


def test_large_records_and_many_readers_of_the_log_take_bounded_memory(log: Log) -> None:
    """Answers from the log are kept for others, up to a number of bytes."""
    for number in range(60):
        log.producer.produce(log.topic, b"%d" % number + b"x" * 900_000)
        log.producer.produce(log.topic, b"%d" % number)
    assert log.producer.flush(60) == 0
    log.start(cache_bytes=0)
    with contextlib.ExitStack() as opened:
        subscribers = [opened.enter_context(log.subscriber()) for _ in range(3)]
        for each in subscribers:
            found = records(each, lambda found: len(found) == 120)
            assert [record.offset for record in found] == list(range(120))
    bridge = log.bridge.bridge
    assert isinstance(bridge, ZeroMqBridge)
    assert bridge._answers is not None
    stored = bridge._answers._stored
    assert 0 < stored._kept_bytes <= 16 << 20
    assert sum(map(len, stored._kept.values())) == stored._kept_bytes
    assert len(stored._reads) <= 8


def test_what_a_requester_that_reads_on_will_ask_for_is_read_before(log: Log) -> None:
    log.send(*(b"%d" % number + b"x" * 100_000 for number in range(60)))
    log.start(cache_bytes=0)
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.connect(log.addresses[1])
        offset = 0
        for _ in range(2):
            asking.send(struct.pack(">2sBBIIQ", b"tr", 1, 1, 1, 0, offset))
            assert asking.poll(30_000)
            offset = decode_head(asking.recv_multipart()[1]).following
        bridge = log.bridge.bridge
        assert isinstance(bridge, ZeroMqBridge)
        answers = bridge._answers
        assert answers is not None
        following = Wanted(0, offset, False)
        log.bridge.wait(
            lambda: answers._stored.kept(following) is not None, "the next one is there"
        )
        assert len(answers._stored._kept) == 3  # of more than 10


class Stubs:
    """What publishes live needs: an identity, a follower and a socket."""

    def __init__(self) -> None:
        self.asked: list[Future[Described]] = []
        self.positions = {("t", 0): 0}
        self.sent: list[BlockHead] = []
        self.added: dict[tuple[str, int], int] = {}

    def ask(self) -> Future[Described]:
        self.asked.append(Future())
        return self.asked[-1]

    def still(self, _topic_id: str, _stop: object, asked: Future[Described]) -> Described:
        return asked.result(0)

    def add(self, starts: dict[tuple[str, int], int]) -> None:
        self.added |= starts

    def send(self, frames: tuple[bytes, bytes]) -> None:
        if frames[0] != b"/":
            self.sent.append(decode_head(frames[1]))

    def subscribers(self, _timeout_s: float) -> int:
        return 1


def makes_messages() -> bool:
    """Whether programs can make records as confluent-kafka has them. With 2.11.0 they can't."""
    try:
        return Message("t", 0, value=b"v", offset=0) is not None
    except TypeError:
        return False


@pytest.mark.skipif(not makes_messages(), reason="this confluent-kafka lets nobody make a Message")
def test_while_a_broker_says_which_topic_it_is_the_next_records_are_read() -> None:
    stubs: Any = Stubs()
    place = Place("b", "t", 1, Kafka("127.0.0.1:1"))
    published = Published(7, {0: 0}, 1 << 20)
    live = _Live(place, stubs, "id", published, stubs, Counts())

    def turn(*offsets: int, position: int) -> None:
        stubs.positions["t", 0] = position
        found = [Message("t", 0, value=b"v", offset=each, timestamp=(1, 5)) for each in offsets]
        live._turn(stubs, found, threading.Event())

    turn(0, 1, position=2)
    assert (len(stubs.asked), stubs.sent) == (1, [])
    stubs.asked[0].set_result(Described("id", [0, 1]))
    turn(2, position=4)  # and a marker
    assert [(each.first, each.following, each.size) for each in stubs.sent] == [(0, 2, 2)]
    assert (stubs.added, published.ends) == ({("t", 1): 0}, {0: 2, 1: 0})
    with pytest.raises(FutureTimeoutError):  # nothing is sent before it is known
        turn(position=4)
    stubs.sent.clear()
    turn(4, position=5)
    stubs.asked[-1].set_result(Described("id", [0, 1]))
    turn(position=5)
    assert [(each.first, each.following, each.size) for each in stubs.sent] == [(4, 5, 1)]


class Kills:
    """Two topics and their bridges in a worker, a program that follows them, and a broker."""

    def __init__(self, folder: Path, broker: BrokerProcess, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker, self.kafka = broker, Kafka(broker.bootstrap)
        self.plain, self.compacted = f"plain-{seed}", f"compacted-{seed}"
        self.files = [folder / name for name in (self.plain, self.compacted)]
        small = {"segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
        self.kafka.create_topics(
            "tests",
            {
                self.plain: (1, {}),
                self.compacted: (1, {"cleanup.policy": "compact"} | small),
            },
        )
        create_topic(self.kafka, BRIDGES)
        board = BoardWriter(self.kafka, BRIDGES)
        arguments: list[str] = []
        for topic, file in zip((self.plain, self.compacted), self.files, strict=True):
            at = [f"tcp://127.0.0.1:{reserve_port()}" for _ in range(2)]
            options = {"publish": at[0], "requests": at[1], "cache_bytes": 100_000}
            given = {"name": topic, "kind": "zeromq", "topic": topic, "options": options}
            board.define(parse(Definition, given | {"managed": False}, DefinitionError, ""))
            arguments += [str(file), *at]
        board.flush()
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 1, "enable.idempotence": True}
        )
        command = ["bridge", "run", self.plain, self.compacted, "-b", broker.bootstrap]
        self.worker = WorkerProcess(command, folder / "worker.log")
        program = [sys.executable, "-m", "tests.connect.direct.zeromq_follower", *arguments]
        self.program = program
        self.folder = folder
        self.worker.start()
        self.follower = self.start_follower()
        self.is_over = threading.Event()
        self.producing = threading.Thread(target=self.produce)
        self.producing.start()

    def start_follower(self) -> ServerProcess:
        log = self.folder / "follower.log"
        return ServerProcess("follower", self.program, log, env=dict(os.environ))

    def produce(self) -> None:
        """Write to both topics until the end: to the second one with few keys and deletions."""
        chance = random.Random(self.chance.random())
        while not self.is_over.wait(0.002):
            number = chance.randrange(10**9)
            self.producer.produce(self.plain, b"%d" % number, b"%d" % (number % 50))
            value = None if number % 5 == 0 else b"%d" % number + b"x" * 4000
            self.producer.produce(self.compacted, value, b"%d" % (number % 50))
            self.producer.poll(0)

    def kill(self) -> None:
        """Kill two of the three while records come, and start them again."""
        sizes = [file.stat().st_size if file.exists() else 0 for file in self.files]

        def is_at_work() -> bool:
            return all(
                file.exists() and file.stat().st_size > size + 1000
                for file, size in zip(self.files, sizes, strict=True)
            )

        poll_until(is_at_work, 60, "records come", 0.02)
        self.is_over.wait(self.chance.random() * 0.1)
        killed = self.chance.sample(("broker", "worker", "follower"), 2)
        for each in killed:
            getattr(self, each).kill()
        if "broker" in killed:
            self.broker.start()
        if "worker" in killed:
            self.worker.start()
        if "follower" in killed:
            self.follower = self.start_follower()

    def check(self) -> None:
        """Wait until the program has all, and compare that with the topics."""
        self.is_over.set()
        self.producing.join()
        assert self.producer.flush(60) == 0
        logs = [self.stored(topic) for topic in (self.plain, self.compacted)]
        table = {key: value for _, key, value in logs[1] if value is not None}
        for _, key, value in logs[1]:
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value

        def is_complete() -> bool:
            assert self.follower.exit_code is None, self.follower.output()
            last = [(lines(file) or [{"at": {"0": [0, 0]}}])[-1] for file in self.files]
            ends = [log[-1][0] + 1 for log in logs]
            return [each["at"]["0"][1] for each in last] >= ends

        poll_until(is_complete, 60, "the program has all", 0.05)
        found, last = (
            [row for each in lines(file) for row in each["found"]] for file in self.files
        )
        assert found == logs[0]
        values: dict[str, str] = {}
        for _, key, value in last:
            values.pop(key, None)
            if value is not None:
                values[key] = value
        assert values == table
        assert [row[0] for row in last] == sorted({row[0] for row in last})

    def stored(self, topic: str) -> list[list[Any]]:
        """Return offset, key and value of what a topic has."""
        end = self.kafka.end_offsets("tests", [(topic, 0)])[topic, 0]
        reader = ExtractReader.of(self.kafka, "tests")
        found: list[list[Any]] = []
        offset = 0
        while offset < end:
            extract = reader.read((topic, 0), offset, 10_000, 10_000_000, 10.0)
            for each in extract.records:
                key, value = each.key(), each.value()
                found.append([each.offset(), (key or b"").decode(), value and value.decode()])
            offset = extract.following
        reader.close()
        return found

    def close(self) -> None:
        self.is_over.set()
        self.producing.join()
        self.worker.kill()
        self.follower.kill()


@pytest.mark.crash
def test_kills_of_bridge_subscriber_and_broker_lose_nothing(tmp_path: Path) -> None:
    """Each record comes once and in order, and the last values of a compacted topic are right."""
    seed = chosen_seed(32)
    settings = {"log.cleaner_backoff_ms": "500"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        kills = Kills(tmp_path, broker, seed)
        try:
            for _ in range(rounds("CRASH_ROUNDS", 5, 50)):
                kills.kill()
            kills.check()
        except BaseException:
            print(f"CRASH_SEED={seed}", kills.worker.log(), sep="\n")
            raise
        finally:
            kills.close()
