"""confluent-kafka (librdkafka): produce, positions, groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.interop.common import (
    BASE_TIMESTAMP,
    CODECS,
    DEADLINE,
    GroupMemberProcess,
    Rec,
    sample_records,
    wait_for,
)
from tests.interop.conftest import MakeTopic
from tests.support.librdkafka import connected, ready_for_id

OFFSET_TAIL_BASE = -2000
"""librdkafka's RD_KAFKA_OFFSET_TAIL(n) is this minus n."""


def producer(bootstrap: str, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **config})


@contextmanager
def consumer(bootstrap: str, group: str = "none", **config: Any) -> Iterator[Consumer]:
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            "fetch.wait.max.ms": 50,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
    )
    try:
        yield connected(client)
    finally:
        client.close()


def send(
    bootstrap: str,
    topic: str,
    records: list[Rec],
    partition: int = 0,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Produce and check that every record was taken."""
    client = producer(bootstrap, **(config or {}))
    failed: list[Any] = []
    delivered = itertools.count()

    def report(error: KafkaError | None, _: Message) -> None:
        next(delivered)
        if error is not None:
            failed.append(error)

    for rec in records:
        client.produce(
            topic,
            rec.value,
            rec.key,
            partition,
            on_delivery=report,
            timestamp=rec.timestamp,
            headers=list(rec.headers),
        )
    assert client.flush(DEADLINE) == 0
    assert failed == []
    assert next(delivered) == len(records)


def numbered(count: int, start: int = 0) -> list[Rec]:
    return [Rec(None, b"%d" % n, BASE_TIMESTAMP + n * 10) for n in range(start, start + count)]


def take(client: Consumer, count: int) -> list[Message]:
    """Poll until there are ``count`` messages; an error event fails."""
    found: list[Message] = []

    def enough() -> bool:
        message = client.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
        return len(found) >= count

    if count:
        wait_for(enough, f"{count} messages, got {len(found)}")
    return found


def values(messages: list[Message]) -> list[int]:
    return [int(message.value() or b"") for message in messages]


def as_rec(message: Message) -> Rec:
    pairs: Any = message.headers() or []
    key: Any = message.key()
    value: Any = message.value()
    return Rec(key, value, message.timestamp()[1], tuple(pairs))


# --- produce -------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_acks_comes_back_as_it_was(
    bootstrap: str, topic: str, codec: str, acks: str
) -> None:
    records = sample_records(60)
    send(bootstrap, topic, records, config={"compression.type": codec, "acks": acks})
    with consumer(bootstrap) as client:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        messages = take(client, len(records))
    assert [message.offset() for message in messages] == list(range(len(records)))
    assert [as_rec(message) for message in messages] == records


@pytest.mark.parametrize("codec", CODECS)
def test_idempotent_produce_keeps_order_and_has_no_duplicates(
    bootstrap: str, make_topic: MakeTopic, codec: str
) -> None:
    topic = make_topic(partitions=3)
    idempotent = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 1}
    client = ready_for_id(producer(bootstrap, **idempotent))
    for number in range(3000):
        client.produce(topic, b"%d" % number, partition=number % 3)
        client.poll(0)
    assert client.flush(DEADLINE) == 0
    with consumer(bootstrap) as reader:
        reader.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(3)])
        messages = take(reader, 3000)
    for partition in range(3):
        mine = [m for m in messages if m.partition() == partition]
        assert values(mine) == list(range(partition, 3000, 3))


def test_a_batch_over_the_topics_limit_is_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(**{"max.message.bytes": "2000"})
    client = producer(bootstrap)
    outcome: dict[str, Any] = {}
    for name, size in (("small", 1000), ("large", 3000)):

        def report(error: KafkaError | None, _: Message, name: str = name) -> None:
            outcome[name] = error

        client.produce(topic, b"x" * size, on_delivery=report)
        assert client.flush(DEADLINE) == 0
    assert outcome["small"] is None
    assert outcome["large"].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_topic_is_made_by_the_first_produce(bootstrap: str, unique: Callable[[str], str]) -> None:
    topic = unique("auto")
    send(bootstrap, topic, numbered(3))
    with consumer(bootstrap) as client:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert values(take(client, 3)) == [0, 1, 2]


# --- positions -----------------------------------------------------------------------------------


@pytest.fixture
def hundred(bootstrap: str, make_topic: MakeTopic) -> str:
    """A topic with one partition and the numbers 0 to 99, in compressed batches."""
    topic = make_topic()
    for start, count in ((0, 40), (40, 40), (80, 20)):
        send(bootstrap, topic, numbered(count, start), config={"compression.type": "zstd"})
    return topic


@pytest.mark.parametrize(
    ("position", "first"),
    [
        (OFFSET_BEGINNING, 0),
        (0, 0),
        (17, 17),
        (40, 40),
        (99, 99),
        (OFFSET_TAIL_BASE - 10, 90),
        (OFFSET_TAIL_BASE - 1, 99),
    ],
)
def test_consume_from_a_position(bootstrap: str, hundred: str, position: int, first: int) -> None:
    with consumer(bootstrap) as client:
        client.assign([TopicPartition(hundred, 0, position)])
        messages = take(client, 100 - first)
    assert values(messages) == list(range(first, 100))


def test_consume_from_the_end_sees_only_what_comes_later(bootstrap: str, hundred: str) -> None:
    with consumer(bootstrap, enable_partition_eof=True) as client:
        client.assign([TopicPartition(hundred, 0, OFFSET_END)])
        at_end = wait_for(lambda: client.poll(0.2), "end of partition")
        assert at_end.error().code() == KafkaError._PARTITION_EOF
        assert at_end.offset() == 100
        send(bootstrap, hundred, numbered(1, 100))
        later = wait_for(lambda: client.poll(0.2), "the new message")
    assert values([later]) == [100]


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        (0, 0),
        (BASE_TIMESTAMP, 0),
        (BASE_TIMESTAMP + 1, 1),
        (BASE_TIMESTAMP + 170, 17),
        (BASE_TIMESTAMP + 985, 99),
        (BASE_TIMESTAMP + 10_000_000, -1),
    ],
)
def test_offsets_for_timestamps_are_exact(
    bootstrap: str, hundred: str, timestamp: int, offset: int
) -> None:
    with consumer(bootstrap) as client:
        (found,) = client.offsets_for_times([TopicPartition(hundred, 0, timestamp)], DEADLINE)
        assert found.error is None
        assert found.offset == offset


def test_consume_from_the_committed_offset(bootstrap: str, hundred: str, group: str) -> None:
    with consumer(bootstrap, group) as client:
        client.assign([TopicPartition(hundred, 0)])
        take(client, 5)
        client.commit(
            offsets=[TopicPartition(hundred, 0, 30, metadata="note ü")], asynchronous=False
        )
        (committed,) = client.committed([TopicPartition(hundred, 0)], DEADLINE)
        assert (committed.offset, committed.metadata) == (30, "note ü")
    with consumer(bootstrap, group) as client:
        client.subscribe([hundred])
        assert values(take(client, 3)) == [30, 31, 32]


def test_offset_out_of_range_follows_the_reset_policy(bootstrap: str, hundred: str) -> None:
    with consumer(bootstrap, auto_offset_reset="error") as client:
        client.assign([TopicPartition(hundred, 0, 5000)])
        event = wait_for(lambda: client.poll(0.2), "an error event")
        assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
    with consumer(bootstrap) as client:
        client.assign([TopicPartition(hundred, 0, 5000)])
        assert values(take(client, 1)) == [0]


def test_watermarks_and_seek(bootstrap: str, hundred: str) -> None:
    with consumer(bootstrap) as client:
        assert client.get_watermark_offsets(TopicPartition(hundred, 0), DEADLINE) == (0, 100)
        client.assign([TopicPartition(hundred, 0, 50)])
        assert values(take(client, 1)) == [50]
        client.seek(TopicPartition(hundred, 0, 7))
        wait_for(lambda: values(take(client, 1)) == [7], "the position after the seek")


def test_small_fetches_read_everything(bootstrap: str, topic: str) -> None:
    records = [Rec(None, bytes([n]) * 5000, BASE_TIMESTAMP) for n in range(50)]
    send(bootstrap, topic, records, config={"batch.num.messages": 1})
    limits: dict[str, Any] = {
        "fetch_message_max_bytes": 1000,
        "fetch_max_bytes": 1000,
        "message_max_bytes": 1000,
    }
    with consumer(bootstrap, **limits, receive_message_max_bytes=100_000) as client:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert [m.value() for m in take(client, 50)] == [record.value for record in records]


# --- groups --------------------------------------------------------------------------------------


class Member:
    """A consumer of a group that keeps track of what it was assigned."""

    def __init__(self, client: Consumer, topic: str) -> None:
        self.client = client
        self.assigned: set[int] = set()
        self.rebalances = 0
        self.messages: list[Message] = []
        self.error: KafkaError | None = None
        client.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.assigned |= {p.partition for p in partitions}

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self.assigned -= {p.partition for p in partitions}

    def poll(self) -> None:
        message = self.client.poll(0.05)
        if message is None:
            return
        if message.error() is None:
            self.messages.append(message)
        else:
            self.error = message.error()


def settle(members: Sequence[Any], shares: list[int]) -> None:
    """Poll all members until each has as many partitions as ``shares`` says, and none twice.

    Members have ``poll`` and ``assigned``.
    """

    def settled() -> bool:
        for member in members:
            member.poll()
        every = [p for member in members for p in member.assigned]
        return sorted(len(m.assigned) for m in members) == sorted(shares) and len(every) == len(
            set(every)
        )

    wait_for(settled, f"shares {shares}, have {[sorted(m.assigned) for m in members]}")


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions_and_take_over_from_who_leaves(
    bootstrap: str, make_topic: MakeTopic, group: str, assignor: str
) -> None:
    topic = make_topic(partitions=6)
    config: dict[str, Any] = {"partition_assignment_strategy": assignor}
    with consumer(bootstrap, group, **config) as one:
        first = Member(one, topic)
        settle([first], [6])
        with (
            consumer(bootstrap, group, **config) as two,
            consumer(bootstrap, group, **config) as three,
        ):
            members = [first, Member(two, topic), Member(three, topic)]
            settle(members, [2, 2, 2])
            for partition in range(6):
                send(bootstrap, topic, numbered(5, partition * 5), partition)

            def all_read() -> bool:
                for member in members:
                    member.poll()
                return sum(len(member.messages) for member in members) >= 30

            wait_for(all_read, "all 30 messages")
            read = sorted(n for member in members for n in values(member.messages))
            assert read == list(range(30))
            assert all(len(member.messages) == 10 for member in members)
            first.client.commit(asynchronous=False)
        settle([first], [6])


def test_two_groups_each_get_everything(
    bootstrap: str, hundred: str, unique: Callable[[str], str]
) -> None:
    for _ in range(2):
        with consumer(bootstrap, unique("group")) as client:
            client.subscribe([hundred])
            assert values(take(client, 100)) == list(range(100))


@pytest.mark.crash
@pytest.mark.parametrize("client_name", ["confluent", "kafka-python", "aiokafka"])
def test_takeover_from_the_last_commit_when_a_consumer_dies(
    bootstrap: str, topic: str, group: str, tmp_path: Path, client_name: str
) -> None:
    send(bootstrap, topic, numbered(5))
    with GroupMemberProcess(client_name, bootstrap, group, topic, tmp_path / "member") as member:
        wait_for(lambda: len(member.seen()) == 5, "the member has committed 5 records")
        with consumer(bootstrap, group) as survivor:
            survivor.subscribe([topic])
            survivor.poll(0.5)
            member.kill()
            send(bootstrap, topic, numbered(5, 5))
            assert values(take(survivor, 5)) == [5, 6, 7, 8, 9]


def test_a_static_member_comes_back_without_a_rebalance(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(partitions=4)
    static: dict[str, Any] = {"group_instance_id": "one", "session_timeout_ms": 20_000}
    with consumer(bootstrap, group, group_instance_id="two") as other_client:
        with consumer(bootstrap, group, **static) as client:
            other, leaving = Member(other_client, topic), Member(client, topic)
            settle([other, leaving], [2, 2])
            before = set(leaving.assigned)
        rebalances = other.rebalances
        with consumer(bootstrap, group, **static) as client:
            back = Member(client, topic)

            def has_its_share() -> bool:
                back.poll()
                other.poll()
                return bool(back.assigned)

            wait_for(has_its_share, "the static member has its partitions again")
            assert back.assigned == before
            assert other.rebalances == rebalances


def test_a_static_id_that_is_used_again_fences_the_first(
    bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    topic = make_topic(partitions=2)
    with (
        consumer(bootstrap, group, group_instance_id="same") as one,
        consumer(bootstrap, group, group_instance_id="same") as two,
    ):
        first = Member(one, topic)
        settle([first], [2])
        second = Member(two, topic)

        def fenced() -> bool:
            first.poll()
            second.poll()
            return first.error is not None

        wait_for(fenced, "the first member is told")
        assert first.error is not None
        # librdkafka makes it a fatal error, with the broker's reason in its text.
        assert first.error.code() == KafkaError._FATAL
        assert "fenced" in first.error.str()


# --- lag -----------------------------------------------------------------------------------------


def test_lag_of_a_group_as_tools_compute_it(
    bootstrap: str, hundred: str, group: str, admin: AdminClient
) -> None:
    with consumer(bootstrap, group) as client:
        client.commit(offsets=[TopicPartition(hundred, 0, 60)], asynchronous=False)
    asked = [ConsumerGroupTopicPartitions(group)]
    stored = admin.list_consumer_group_offsets(asked)[group].result(DEADLINE)
    (position,) = stored.topic_partitions
    end = admin.list_offsets({TopicPartition(hundred, 0): OffsetSpec.latest()})  # type: ignore[no-untyped-call]
    (latest,) = [future.result(DEADLINE) for future in end.values()]
    assert latest.offset - position.offset == 40


def test_an_unknown_topic_is_an_error_where_it_is_not_made(bootstrap: str) -> None:
    with consumer(bootstrap) as client, pytest.raises(KafkaException) as caught:
        client.get_watermark_offsets(TopicPartition("no/such/topic", 0), 5)
    assert caught.value.args[0].code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._TIMED_OUT,
    )
