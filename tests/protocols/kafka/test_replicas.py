"""Elections and reassignments on one broker, answered as Apache Kafka with one node does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tidemill.engine.authorize import UNRESTRICTED
from tidemill.engine.door import Door, Topics
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.protocols.kafka.errors import (
    ElectionNotNeededError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
)
from tidemill.protocols.kafka.replicas import alter_reassignments, elect_leaders, move_replicas
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.types import NewTopic
from tidemill.state.errors import InvalidReplicaAssignmentError


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog(node_id=1)
    for record in catalog.create([NewTopic("orders", 2, 1)]).records:
        catalog.replay(record.key, record.value)
    return catalog


@pytest.fixture
def door(catalog: Catalog) -> Door:
    parts = SimpleNamespace(
        access=UNRESTRICTED,
        topics=Topics(UNRESTRICTED, catalog),
        storage=SimpleNamespace(path="/data"),
    )
    return cast(Door, parts)


def test_an_election_is_never_needed(door: Door) -> None:
    outcomes = elect_leaders(door, [("orders", 0), ("orders", 2), ("nope", 0)])
    assert [type(outcome) for outcome in outcomes] == [
        ElectionNotNeededError,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
    ]


def test_only_a_move_to_where_the_partition_is_succeeds(door: Door) -> None:
    changes = [
        ("orders", 0, [1]),
        ("orders", 1, None),
        ("orders", 0, [2]),
        ("orders", 0, [1, 1]),
        ("orders", 0, []),
        ("orders", 7, [1]),
        ("nope", 0, None),
    ]
    outcomes = alter_reassignments(door, 1, changes)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        NoReassignmentInProgressError,
        InvalidReplicaAssignmentError,
        InvalidReplicaAssignmentError,
        InvalidReplicaAssignmentError,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
    ]


def test_partitions_can_only_move_to_the_folder_they_are_in(door: Door) -> None:
    asked = [("orders", 0), ("nope", 0)]
    there, missing_topic = move_replicas(door, "/data", asked)
    assert there is None
    assert isinstance(missing_topic, UnknownTopicOrPartitionError)
    elsewhere, _ = move_replicas(door, "/other", asked)
    assert isinstance(elsewhere, LogDirNotFoundError)


@pytest.mark.parametrize(
    ("topic", "partition", "there"),
    [
        ("orders", 0, True),
        ("orders", 1, True),
        ("orders", 2, False),
        ("orders", -1, False),
        ("nope", 0, False),
    ],
)
def test_missing_partitions(catalog: Catalog, topic: str, partition: int, there: bool) -> None:
    assert (catalog.missing_partition(topic, partition) is None) is there
