"""A partition as a multicast stream, over a broker."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.connect.direct.conftest import Direct, Running
from tests.direct.multicast.conftest import mold as mold
from tests.support.broker_process import BrokerProcess
from tests.support.effort import examples
from tests.support.invalid_headers import send_with_invalid_name
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tests.support.spans import recorded
from tests.support.topics import remove_before
from tests.support.worker_process import WorkerProcess
from tidemill.confluent.clients import Kafka
from tidemill.connect.direct.identity import Identity
from tidemill.direct.multicast import (
    Lost,
    MulticastReceiver,
    Received,
    Receiver,
    Record,
    Restarted,
    decode_record,
)
from tidemill.direct.multicast.sockets import Address

_NUMBERS = itertools.count(1)


class Stream:
    """A topic, and its stream."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.group: Address = (
            f"239.78.{os.getpid() % 256}.{next(_NUMBERS) % 250 + 1}",
            reserve_port(),
        )
        self.requests: Address = ("127.0.0.1", reserve_port())
        running.kafka.create_topics("tests", {running.topic: (1, {"segment.bytes": "1048576"})})
        self.producer = Producer({"bootstrap.servers": running.kafka.servers, "linger.ms": 1})

    def options(self) -> dict[str, str]:
        return {
            "group": f"{self.group[0]}:{self.group[1]}",
            "requests": f"{self.requests[0]}:{self.requests[1]}",
        }

    def define(self, **options: object) -> None:
        self.running.define("multicast", **self.options(), **options)

    def send(self, *values: bytes | None, key: bytes | None = b"k") -> None:
        for value in values:
            while True:
                try:
                    self.producer.produce(self.running.topic, value, key)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(60) == 0

    def receiver(self, receiver: Receiver | None = None) -> MulticastReceiver:
        return MulticastReceiver(self.group, [self.requests], receiver=receiver)


@pytest.fixture
def stream(running: Running) -> Stream:
    return Stream(running)


def records(
    receiver: MulticastReceiver, is_done: Callable[[list[Record]], bool], timeout_s: float = 60
) -> list[Record]:
    """Poll until it is done; return the records. Nothing may be lost."""
    found: list[Record] = []
    deadline = time.monotonic() + timeout_s
    while not is_done(found):
        for event in receiver.poll(0.1):
            assert isinstance(event, Received), event
            record = decode_record(event.message)
            if record is not None:
                found.append(record)
        assert time.monotonic() < deadline, (len(found), receiver.receiver.missing)
    return found


def test_records_arrive_with_key_value_headers_and_time(stream: Stream) -> None:
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    with recorded() as spans, stream.receiver(Receiver(sequence=1)) as receiver:
        stream.producer.produce(
            stream.running.topic, b"v", b"k", timestamp=1_700_000_000_123, headers=[("h", b"x")]
        )
        stream.send(b"", None)
        found = records(receiver, lambda found: len(found) == 3)
        poll_until(lambda: len(spans()) > 0, 30, "the span of the batch has ended")
        (made, *_) = spans()
    assert made.startswith("bridge ")
    assert found[0] == Record(b"k", b"v", 1_700_000_000_123, (("h", b"x"),))
    assert [each.value for each in found[1:]] == [b"", None]


def test_what_was_written_long_before_comes_from_the_log(stream: Stream) -> None:
    values = [b"%05d" % number * 20 for number in range(20_000)]
    stream.send(*values)
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    with stream.receiver(Receiver(sequence=1)) as receiver:
        stream.send(b"now")
        found = records(receiver, lambda found: len(found) == len(values) + 1)
        assert receiver.receiver.recovered >= len(values)
    assert [each.value for each in found] == [*values, b"now"]


def test_markers_and_aborted_records_are_empty_messages(stream: Stream) -> None:
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    producer = Producer(
        {
            "bootstrap.servers": stream.running.kafka.servers,
            "transactional.id": stream.running.name,
        }
    )
    producer.init_transactions()
    with stream.receiver(Receiver(sequence=1)) as receiver:
        expected = []
        for number in range(6):
            producer.begin_transaction()
            for each in range(3):
                producer.produce(stream.running.topic, b"%d-%d" % (number, each))
            producer.flush(30)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected += [b"%d-%d" % (number, each) for each in range(3)]
        found = records(receiver, lambda found: receiver.receiver.next == 6 * 4 + 1)
    assert [each.value for each in found] == expected


def test_a_receiver_in_c_gets_the_log_although_it_drops_packets(stream: Stream, mold: Path) -> None:
    stream.define()
    stream.send(*(b"x" * (number % 50) for number in range(2000)))
    stream.running.start()
    stream.running.wait_for_phase("running")
    host, port = stream.group
    command = [str(mold), host, str(port), str(stream.requests[1]), "1", "4000", "10"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline() == "ready\n"
        stream.send(*(b"y" * (number % 50) for number in range(2000)))
        lines = peer.stdout.read().splitlines()
    assert peer.returncode == 0
    assert [int(line.split()[0]) for line in lines] == list(range(1, 4001))
    # version, flags, time, count of headers, length of the key, the key
    overhead = 1 + 1 + 8 + 2 + 4 + 1
    assert [int(line.split()[1]) - overhead for line in lines] == [n % 50 for n in range(2000)] * 2


def test_below_the_start_of_the_log_the_loss_is_reported(stream: Stream) -> None:
    stream.send(*(b"%d" % number for number in range(100)))
    remove_before(stream.running.kafka.servers, stream.running.topic, 60)
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    with stream.receiver(Receiver(sequence=1)) as receiver:
        stream.send(b"now")
        events: list[object] = []
        deadline = time.monotonic() + 60
        while receiver.receiver.next != 102:
            events += receiver.poll(0.1)
            assert time.monotonic() < deadline
    assert events[0] == Lost(1, 60)
    assert [each.sequence for each in events[1:] if isinstance(each, Received)] == [*range(61, 102)]


def test_a_value_larger_than_a_datagram_is_left_out_with_its_size(stream: Stream) -> None:
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    with stream.receiver(Receiver(sequence=1)) as receiver:
        stream.send(b"x" * 60_000, b"x" * 70_000)
        found = records(receiver, lambda found: len(found) == 2)
    assert found[0].value == b"x" * 60_000
    assert (found[1].key, found[1].value, found[1].left_out) == (b"k", None, 70_000)
    stream.running.wait(lambda: stream.running.status()["refused"] == 1, "it is counted")


def test_headers_that_no_envelope_can_have_are_left_out_and_the_stream_continues(
    stream: Stream,
) -> None:
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    headers: list[tuple[str, str | bytes | None]] = [("h" * 70_000, b"x")]
    with stream.receiver(Receiver(sequence=1)) as live:
        for value in (b"v", b"", None):
            stream.producer.produce(stream.running.topic, value, b"k", headers=headers)
        send_with_invalid_name(stream.running.kafka, stream.running.topic)
        stream.send(b"last")
        found = records(live, lambda found: len(found) == 5)
    stream.running.stop()
    stream.running.start()  # now they come from the log
    with stream.receiver(Receiver(sequence=1)) as late:
        assert records(late, lambda found: len(found) == 5) == found
    assert [(each.key, each.value, each.left_out) for each in found] == [
        (b"k", None, 1), (b"k", b"", 0), (b"k", None, 0), (b"k", b"named", 0), (b"k", b"last", 0)
    ]  # fmt: skip
    assert not any(each.headers for each in found)


def test_without_a_broker_the_session_continues_and_memory_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []
    ask = Identity.ask

    def counted(self: Identity) -> Future[Any]:
        asked.append(None)
        return ask(self)

    monkeypatch.setattr("tidemill.connect.direct.identity.REQUEST_S", 0.3)
    monkeypatch.setattr(Identity, "ask", counted)
    with BrokerProcess(tmp_path) as broker:
        stream = Stream(Running(Kafka(broker.bootstrap)))
        bridge = Direct(stream.running.kafka, "multicast", stream.running.topic)
        bridge.start(**stream.options())
        try:
            with stream.receiver(Receiver(sequence=1)) as first:
                stream.send(b"1", b"2")
                records(first, lambda found: len(found) == 2)
                broker.kill()
                before = len(asked)
                poll_until(lambda: len(asked) > before + 4, 60, "nobody says which topic it is")
                with stream.receiver(Receiver(sequence=1)) as late:
                    found = records(late, lambda found: len(found) == 2)
                    assert [each.value for each in found] == [b"1", b"2"]
                broker.start()
                stream.send(b"3")
                assert [each.value for each in records(first, bool)] == [b"3"]
                assert not first.receiver.is_ended
        finally:
            bridge.stop()


def test_a_bridge_that_stops_does_not_end_the_session_and_one_without_a_topic_does(
    stream: Stream,
) -> None:
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    with stream.receiver(Receiver(sequence=1)) as receiver:
        stream.send(b"1")
        records(receiver, lambda found: len(found) == 1)
        stream.running.stop()
        stream.send(b"2")
        stream.running.start()
        assert [each.value for each in records(receiver, bool)] == [b"2"]
        assert not receiver.receiver.is_ended
        admin = AdminClient({"bootstrap.servers": stream.running.kafka.servers})
        admin.delete_topics([stream.running.topic])[stream.running.topic].result(30)
        assert list(receiver) == []
        assert receiver.receiver.is_ended


def test_a_topic_that_is_created_again_is_another_session(stream: Stream) -> None:
    stream.define()
    stream.running.start()
    stream.running.wait_for_phase("running")
    with stream.receiver(Receiver(sequence=1)) as receiver:
        stream.send(b"old")
        records(receiver, lambda found: len(found) == 1)
        admin = AdminClient({"bootstrap.servers": stream.running.kafka.servers})
        admin.delete_topics([stream.running.topic])[stream.running.topic].result(30)
        new = NewTopic(stream.running.topic, 1, 1)
        admin.create_topics([new])[stream.running.topic].result(30)
        events: list[object] = []
        deadline = time.monotonic() + 60
        while not any(isinstance(each, Received) for each in events):
            stream.send(b"new")
            events += receiver.poll(0.5)
            assert time.monotonic() < deadline, stream.running.status()
    assert isinstance(events[0], Restarted)


@pytest.mark.crash
def test_kills_of_bridge_and_broker_lose_nothing(tmp_path: Path) -> None:
    """The receiver has each record once and in order, and is itself made again at times."""
    chance = random.Random(3)
    with BrokerProcess(tmp_path) as broker:
        stream = Stream(Running(Kafka(broker.bootstrap)))
        stream.define()
        command = ["bridge", "run", stream.running.name, "-b", broker.bootstrap]
        worker = WorkerProcess(command, tmp_path / "worker.log")
        worker.start()
        position, session = 1, None
        found: list[bytes | None] = []
        sent: list[bytes | None] = []
        for round_ in range(examples(3)):
            with stream.receiver(Receiver(session, position, give_up_ms=10**7)) as receiver:
                batch = [b"%d-%d" % (round_, each) for each in range(chance.randrange(50, 300))]
                stream.send(*batch)
                sent += batch
                (worker if round_ % 2 else broker).kill()
                if round_ % 2:
                    worker.start()
                else:
                    broker.start()
                deadline = time.monotonic() + 60
                while len(found) < len(sent):
                    events = receiver.poll(0.2)
                    assert all(isinstance(each, Received) for each in events)
                    values = [decode_record(each.message) for each in events]  # type: ignore[union-attr]
                    found += [each.value for each in values if each is not None]
                    assert time.monotonic() < deadline, worker.log()
                position = receiver.receiver.next or 1
                session = receiver.receiver.session
        worker.kill()
        assert found == sent


def test_an_address_that_is_malformed_is_named(running: Running) -> None:
    running.define("multicast", group="239.1.1.1")
    running.start()
    assert "239.1.1.1 is not ADDRESS:PORT" in running.wait_for_phase("failed")["error"]
