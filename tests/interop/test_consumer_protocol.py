"""confluent-kafka and the Java client with ``group.protocol=consumer`` (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.interop.common import DEADLINE, GroupMemberProcess, wait_for
from tests.interop.java_client import JavaClient
from tests.interop.test_confluent import settle
from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka import connected
from tests.support.topics import create, write

SESSION_MS = 3000
SETTINGS = {
    "groups.min_session_timeout_ms": "1000",
    "groups.consumer_session_timeout_ms": str(SESSION_MS),
    "groups.consumer_heartbeat_interval_ms": "200",
}
CONSUMER = {"group.protocol": "consumer"}
CLASSIC = {
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 200,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups"), settings=SETTINGS) as process:
        yield process
        assert process.terminate() == 0, process.log()
        assert "Traceback" not in process.log(10_000_000), process.log(10_000_000)


class Client:
    """A consumer, what it has and what it has read."""

    def __init__(self, broker: BrokerProcess, group: str, config: Mapping[str, Any]) -> None:
        self.rebalances = 0
        self.numbers: list[int] = []
        self.error: KafkaError | None = None
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "topic.metadata.refresh.interval.ms": 500,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **config,
            }
        )

    def subscribe(self, *topics: str) -> None:
        """Subscribe, and count the rebalances."""
        self.consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    @property
    def assigned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}

    def poll(self, timeout: float = 0.02) -> None:
        message = self.consumer.poll(timeout)
        if message is None:
            return
        if message.error() is None:
            self.numbers.append(int(message.value() or b""))
        else:
            self.error = message.error()


@contextmanager
def client(broker: BrokerProcess, group: str, topic: str = "", **config: Any) -> Iterator[Client]:
    options = {key.replace("_", "."): value for key, value in config.items()}
    member = Client(broker, group, {**CONSUMER, **options})
    connected(member.consumer)
    if topic:
        member.subscribe(topic)
    try:
        yield member
    finally:
        member.consumer.close()


def make_topic(broker: BrokerProcess, name: str, partitions: int) -> str:
    create(broker.bootstrap, name, partitions=partitions)
    return name


def produce(broker: BrokerProcess, topic: str, numbers: range, partitions: int) -> None:
    write(broker.bootstrap, topic, *(b"%d" % number for number in numbers), spread=partitions)


def read(clients: list[Client], count: int) -> list[int]:
    """Poll until the clients have read so many records together; return these."""

    def have_read() -> bool:
        for each in clients:
            each.poll()
        return sum(len(each.numbers) for each in clients) >= count

    wait_for(have_read, f"{count} records")
    return sorted(number for each in clients for number in each.numbers)


def described(broker: BrokerProcess, group: str) -> tuple[str, str]:
    """Return type and state of a group."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    listing = admin.list_consumer_groups().result(DEADLINE).valid
    (found,) = [each for each in listing if each.group_id == group]
    return found.type.name, found.state.name


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_partitions_and_take_over_from_who_leaves(
    broker: BrokerProcess, unique: Callable[[str], str], assignor: str
) -> None:
    topic, group = make_topic(broker, unique("topic"), 6), unique("group")
    config = {"group_remote_assignor": assignor}
    with client(broker, group, topic, **config) as one:
        settle([one], [6])
        with (
            client(broker, group, topic, **config) as two,
            client(broker, group, topic, **config) as three,
        ):
            clients = [one, two, three]
            settle(clients, [2, 2, 2])
            assert described(broker, group) == ("CONSUMER", "STABLE")
            produce(broker, topic, range(60), 6)
            assert read(clients, 60) == list(range(60))
            assert [len(each.numbers) for each in clients] == [20, 20, 20]
            one.consumer.commit(asynchronous=False)
        settle([one], [6])
    assert described(broker, group) == ("CONSUMER", "EMPTY")


def test_commits_are_where_the_next_member_starts(
    broker: BrokerProcess, unique: Callable[[str], str]
) -> None:
    topic, group = make_topic(broker, unique("topic"), 2), unique("group")
    produce(broker, topic, range(20), 2)
    for expected in (range(20), range(0)):
        with client(broker, group, topic) as one:
            settle([one], [2])
            read([one], len(expected))
            one.poll(0.3)
            assert sorted(one.numbers) == list(expected)
            if expected:
                one.consumer.commit(asynchronous=False)


def test_a_pattern_follows_new_topics(broker: BrokerProcess, unique: Callable[[str], str]) -> None:
    prefix, group = unique("log"), unique("group")
    make_topic(broker, f"{prefix}-a", 1)
    make_topic(broker, f"other-{prefix}-a", 1)
    with client(broker, group, f"^{prefix}-.*") as one:
        settle([one], [1])
        make_topic(broker, f"{prefix}-b", 2)
        settle([one], [3])
        assert {topic for topic, _ in one.assigned} == {f"{prefix}-a", f"{prefix}-b"}


def test_a_static_member_comes_back_without_a_rebalance(
    broker: BrokerProcess, unique: Callable[[str], str]
) -> None:
    topic, group = make_topic(broker, unique("topic"), 4), unique("group")
    with client(broker, group, topic, group_instance_id="two") as other:
        with client(broker, group, topic, group_instance_id="one") as leaving:
            settle([other, leaving], [2, 2])
            before = leaving.assigned
        rebalances = other.rebalances
        with client(broker, group, topic, group_instance_id="one") as back:
            settle([other, back], [2, 2])
            assert back.assigned == before
            assert other.rebalances == rebalances


def test_a_static_id_in_use_is_refused(broker: BrokerProcess, unique: Callable[[str], str]) -> None:
    topic, group = make_topic(broker, unique("topic"), 2), unique("group")
    with (
        client(broker, group, topic, group_instance_id="same") as first,
        client(broker, group, group_instance_id="same") as second,
    ):
        settle([first], [2])
        second.subscribe(topic)

        def refused() -> bool:
            first.poll()
            second.poll()
            return second.error is not None

        wait_for(refused, "the second one gets an error")
        assert second.error is not None
        assert second.error.code() == KafkaError._FATAL
        settle([first], [2])


@pytest.mark.crash
def test_a_killed_member_is_replaced_after_its_session(
    broker: BrokerProcess, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("topic"), 1), unique("group")
    produce(broker, topic, range(5), 1)
    arguments = (broker.bootstrap, group, topic, tmp_path / "member")
    with GroupMemberProcess("new-protocol", *arguments) as member:
        wait_for(lambda: len(member.seen()) == 5, "the member has committed 5 records")
        with client(broker, group, topic) as survivor:
            survivor.poll(0.5)
            member.kill()
            produce(broker, topic, range(5, 10), 1)
            assert read([survivor], 5) == [5, 6, 7, 8, 9]


def test_a_group_changes_its_protocol_while_members_come_and_go(
    broker: BrokerProcess, unique: Callable[[str], str]
) -> None:
    topic, group = make_topic(broker, unique("topic"), 6), unique("group")
    with client(broker, group, topic, **CLASSIC) as old:
        settle([old], [6])
        assert described(broker, group) == ("CLASSIC", "STABLE")
        with client(broker, group, topic) as new:
            settle([old, new], [3, 3])
            assert described(broker, group)[0] == "CONSUMER"
            with client(broker, group, topic, **CLASSIC) as third:
                settle([old, new, third], [2, 2, 2])
                produce(broker, topic, range(60), 6)
                clients = [old, new, third]
                assert read(clients, 60) == list(range(60))
                for each in clients:
                    each.consumer.commit(asynchronous=False)
            settle([old, new], [3, 3])
        settle([old], [6])
        assert described(broker, group) == ("CLASSIC", "STABLE")
        with client(broker, group, topic) as again:
            settle([old, again], [3, 3])
            assert described(broker, group)[0] == "CONSUMER"
            assert old.numbers + again.numbers == old.numbers  # all was committed


@pytest.mark.crash
@pytest.mark.parametrize("mixed", [False, True])
def test_members_continue_after_the_broker_was_killed(tmp_path: Path, mixed: bool) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker:
        topic = make_topic(broker, "t", 4)
        with (
            client(broker, "g", topic) as one,
            client(broker, "g", topic, **(CLASSIC if mixed else {})) as two,
        ):
            settle([one, two], [2, 2])
            produce(broker, topic, range(20), 4)
            assert len(read([one, two], 20)) == 20
            had = (one.assigned, two.assigned)
            for each in (one, two):
                each.consumer.commit(asynchronous=False)
            broker.kill()
            broker.start()
            assert described(broker, "g") == ("CONSUMER", "STABLE")
            produce(broker, topic, range(20, 40), 4)
            assert read([one, two], 40) == list(range(40))
            assert (one.assigned, two.assigned) == had  # nobody had to join again
            for each in (one, two):
                each.consumer.commit(asynchronous=False)


def test_a_deleted_group_is_gone(broker: BrokerProcess, unique: Callable[[str], str]) -> None:
    topic, group = make_topic(broker, unique("topic"), 1), unique("group")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    with client(broker, group, topic) as one:
        settle([one], [1])
        with pytest.raises(Exception, match=r"NON_EMPTY|not empty"):
            admin.delete_consumer_groups([group])[group].result(DEADLINE)
    admin.delete_consumer_groups([group])[group].result(DEADLINE)
    listing = admin.list_consumer_groups().result(DEADLINE).valid
    assert group not in {each.group_id for each in listing}


@pytest.mark.parametrize(
    "scenario", ["uniform", "range", "pattern", "static", "migration", "admin"]
)
def test_the_java_client(java: JavaClient, broker: BrokerProcess, scenario: str) -> None:
    java.run("ConsumerProtocol", scenario, broker.bootstrap)
