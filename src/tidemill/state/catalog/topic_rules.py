"""Rules for topics: the number of partitions, replicas, and names that are too similar.

Pure functions. This module must not know which topics exist.

Source: Apache Kafka's checks of CreateTopics and CreatePartitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.log.errors import InvalidTopicError
from tidemill.state.catalog.types import NewTopic
from tidemill.state.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
)


def partitions_of(new: NewTopic, *, default: int, node_id: int) -> int:
    """Return the number of partitions that a new topic gets.

    Raises:
        InvalidRequestError: assignments are given together with numbers.
        InvalidReplicaAssignmentError: the assignments name another broker, or skip a partition.
        InvalidReplicationFactorError: the replication factor is not 1 or -1.
        InvalidPartitionsError: the number of partitions is not above zero or -1.
    """
    if new.assignments:
        if new.partitions != -1 or new.replication_factor != -1:
            raise InvalidRequestError(
                "with replica assignments, partitions and replication factor must be -1"
            )
        if sorted(new.assignments) != list(range(len(new.assignments))):
            raise InvalidReplicaAssignmentError(
                f"assigned partitions must be 0, 1, 2 and so on, not {sorted(new.assignments)}"
            )
        check_assignments(new.assignments.values(), node_id)
        return len(new.assignments)
    if new.replication_factor not in (-1, 1):
        raise InvalidReplicationFactorError(f"invalid replication factor {new.replication_factor}")
    if new.partitions == -1:
        return default
    if new.partitions < 1:
        raise InvalidPartitionsError(f"invalid number of partitions {new.partitions}")
    return new.partitions


def check_assignments(assignments: Iterable[Sequence[int]], node_id: int) -> None:
    """Check that each partition has the one broker as its one replica."""
    for replicas in assignments:
        if list(replicas) != [node_id]:
            raise InvalidReplicaAssignmentError(
                f"invalid replicas {list(replicas)}: the only broker is {node_id}"
            )


def fold(name: str) -> str:
    """Return the name with '.' replaced by '_', as names of metrics have it."""
    return name.replace(".", "_")


def collision(name: str, other: str) -> InvalidTopicError:
    """Return the error for a topic whose name differs from another's in '.' and '_' only."""
    return InvalidTopicError(
        f"topic {name!r} collides with {other!r}",
        hint="Metrics can't distinguish names that differ in '.' and '_' only.",
    )
