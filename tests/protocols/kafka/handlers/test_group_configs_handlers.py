"""Configs of groups: what an admin sets is what members get, after a restart too."""

from __future__ import annotations

from contextlib import closing

from tests.protocols.kafka.broker import Broker
from tests.protocols.kafka.trees import Tree
from tests.support.faultyfs import FaultyFileSystem

DESCRIBE_CONFIGS, ALTER, HEARTBEAT, LIST_RESOURCES = 32, 44, 68, 74
GROUP = 32
NAME = "consumer.heartbeat.interval.ms"


def interval(broker: Broker) -> int:
    member = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": 1000}
    topics = {"subscribed_topic_names": ["t"], "topic_partitions": []}
    answer = broker.call(HEARTBEAT, 1, member | topics)
    assert answer["error_code"] == 0, answer
    return int(answer["heartbeat_interval"])


def alter(broker: Broker, value: str) -> Tree:
    config = {"name": NAME, "config_operation": 0, "value": value}
    group = {"resource_type": GROUP, "resource_name": "g", "configs": [config]}
    (response,) = broker.call(ALTER, 1, {"resources": [group], "validate_only": False})["responses"]
    return dict(response)


def check_the_changed_config(broker: Broker) -> None:
    assert interval(broker) == 700
    group = {"resource_type": GROUP, "resource_name": "g"}
    asked = {"resources": [group], "include_synonyms": True}
    (found,) = broker.call(DESCRIBE_CONFIGS, 4, asked)["results"]
    entries = {each["name"]: each for each in found["configs"]}
    assert (entries[NAME]["value"], entries[NAME]["config_source"]) == ("700", 8)
    assert [each["source"] for each in entries[NAME]["synonyms"]] == [8, 5]
    listed = broker.call(LIST_RESOURCES, 1, {"resource_types": [GROUP]})
    assert listed["config_resources"] == [group]


def test_a_group_config_reaches_the_members_and_survives_a_restart() -> None:
    fs = FaultyFileSystem()
    with closing(Broker(fs)) as broker:
        broker.create("t")
        assert interval(broker) == 5000
        refused = alter(broker, "45000")
        assert refused["error_code"] == 40
        assert "must be below" in refused["error_message"]
        assert alter(broker, "700")["error_code"] == 0
        check_the_changed_config(broker)
    with closing(Broker(fs)) as broker:
        check_the_changed_config(broker)
