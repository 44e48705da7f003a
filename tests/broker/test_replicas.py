"""Elections and reassignments on one broker, answered as Apache Kafka with one node does."""

from __future__ import annotations

import pytest

from tidemill.broker.replicas import alter_reassignments, elect_leaders, missing, move_replicas
from tidemill.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)
from tidemill.state.catalog import Catalog
from tidemill.state.types import NewTopic


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog(node_id=1)
    for record in catalog.create([NewTopic("orders", 2, 1)]).records:
        catalog.replay(record.key, record.value)
    return catalog


def test_an_election_is_never_needed(catalog: Catalog) -> None:
    outcomes = elect_leaders(catalog, [("orders", 0), ("orders", 2), ("nope", 0)])
    assert [type(outcome) for outcome in outcomes] == [
        ElectionNotNeededError,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
    ]


def test_only_a_move_to_where_the_partition_is_succeeds(catalog: Catalog) -> None:
    changes = [
        ("orders", 0, [1]),
        ("orders", 1, None),
        ("orders", 0, [2]),
        ("orders", 0, [1, 1]),
        ("orders", 0, []),
        ("orders", 7, [1]),
        ("nope", 0, None),
    ]
    outcomes = alter_reassignments(catalog, 1, changes)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        NoReassignmentInProgressError,
        InvalidReplicaAssignmentError,
        InvalidReplicaAssignmentError,
        InvalidReplicaAssignmentError,
        UnknownTopicOrPartitionError,
        UnknownTopicOrPartitionError,
    ]


def test_partitions_can_only_move_to_the_folder_they_are_in(catalog: Catalog) -> None:
    asked = [("orders", 0), ("nope", 0)]
    there, missing_topic = move_replicas(catalog, "/data", "/data", asked)
    assert there is None
    assert isinstance(missing_topic, UnknownTopicOrPartitionError)
    elsewhere, _ = move_replicas(catalog, "/data", "/other", asked)
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
    assert (missing(catalog, topic, partition) is None) is there
