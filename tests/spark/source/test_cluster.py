"""Requests to a real cluster, and errors if no broker answers."""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import reserve_port
from tidemill.errors import UnknownTopicOrPartitionError, UnreachableError
from tidemill.spark.errors import OptionError
from tidemill.spark.source.cluster import KafkaCluster
from tidemill.spark.source.planning.options import EARLIEST, LATEST, Subscription

if TYPE_CHECKING:
    from tests.spark.conftest import Broker


@pytest.fixture
def cluster(broker: Broker) -> KafkaCluster:
    return KafkaCluster({"bootstrap.servers": broker.bootstrap}, deadline_s=10)


def test_topics_are_described_with_their_ids(cluster: KafkaCluster, broker: Broker) -> None:
    one, two = broker.topic(3), broker.topic()
    found = cluster.describe(Subscription(topics=(one, two, "no-such-topic")))
    assert {name: topic.partitions for name, topic in found.items()} == {one: (0, 1, 2), two: (0,)}
    assert found[one].topic_id != found[two].topic_id != ""
    assert cluster.describe(Subscription(topics=(one,)))[one] == found[one]


def test_partitions_are_chosen_by_pattern_or_by_number(
    cluster: KafkaCluster, broker: Broker
) -> None:
    one = broker.topic(3)
    assert list(cluster.describe(Subscription(pattern=f"{one[:-1]}."))) == [one]
    assert cluster.describe(Subscription(pattern=one[:-1])) == {}
    found = cluster.describe(Subscription(partitions={one: (1, 7)}))
    assert found[one].partitions == (1,)


def test_offsets_at_both_ends_and_by_time(cluster: KafkaCluster, broker: Broker) -> None:
    topic = broker.topic(2)
    broker.produce(topic, [{"value": b"v", "timestamp": 1000 * i} for i in range(1, 6)])
    both = [(topic, 0), (topic, 1)]
    assert cluster.offsets(dict.fromkeys(both, EARLIEST)) == {both[0]: 0, both[1]: 0}
    assert cluster.offsets(dict.fromkeys(both, LATEST)) == {both[0]: 5, both[1]: 0}
    assert cluster.offsets_at(dict.fromkeys(both, 2001)) == {both[0]: 2, both[1]: None}
    assert cluster.offsets_at({both[0]: 9999}) == {both[0]: None}
    assert cluster.offsets({}) == {}


def test_a_copy_in_another_process_connects_anew(cluster: KafkaCluster, broker: Broker) -> None:
    topic = broker.topic()
    assert list(cluster.describe(Subscription(topics=(topic,)))) == [topic]
    copy = pickle.loads(pickle.dumps(cluster))
    assert list(copy.describe(Subscription(topics=(topic,)))) == [topic]


def test_offsets_of_a_partition_that_is_not_there_are_an_error(broker: Broker) -> None:
    impatient = KafkaCluster({"bootstrap.servers": broker.bootstrap}, deadline_s=0.5)
    with pytest.raises((UnknownTopicOrPartitionError, UnreachableError), match="list offsets"):
        impatient.offsets({("no-such-topic", 0): LATEST})


def test_no_broker_is_an_error_that_names_the_servers_and_the_reason() -> None:
    servers = f"127.0.0.1:{reserve_port()}"
    nowhere = KafkaCluster({"bootstrap.servers": servers}, deadline_s=2.0)
    with pytest.raises(UnreachableError, match=servers) as refusal:
        nowhere.describe(Subscription(topics=("t",)))
    assert "Connection refused" in str(refusal.value)
    assert "kafka.bootstrap.servers" in refusal.value.hint


def test_who_never_answered_is_given_up_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.spark.source.cluster.FIRST_DEADLINE_S", 0.5)
    monkeypatch.setattr("tidemill.spark.source.cluster._REQUEST_S", 0.5)
    nowhere = KafkaCluster({"bootstrap.servers": f"127.0.0.1:{reserve_port()}"})
    started = time.monotonic()
    with pytest.raises(UnreachableError, match="Connection refused"):
        nowhere.offsets({("t", 0): LATEST})
    assert time.monotonic() - started < 30  # the deadline of later answers is twice as long


def test_an_unknown_setting_is_refused() -> None:
    wrong = KafkaCluster({"bootstrap.servers": "127.0.0.1:1", "no.such.thing": "1"})
    with pytest.raises(OptionError, match=r"no\.such\.thing"):
        wrong.describe(Subscription(topics=("t",)))
