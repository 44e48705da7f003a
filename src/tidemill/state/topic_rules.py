"""Rules for topics that need no catalog: the broker's own names, numbers of partitions, replicas.

Pure functions. Source: Apache Kafka's checks of CreateTopics and CreatePartitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
)
from tidemill.state.catalog_format import CATALOG_TOPIC
from tidemill.state.offsets_format import OFFSETS_TOPIC
from tidemill.state.transactions_format import TRANSACTIONS_TOPIC
from tidemill.state.types import NewTopic

INTERNAL_TOPICS = frozenset({CATALOG_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics of the broker itself; clients can't create, change or delete them."""


def is_internal(name: str) -> bool:
    """Whether the topic is the broker's own."""
    return name in INTERNAL_TOPICS


def partitions_of(new: NewTopic, *, default: int, node_id: int) -> int:
    """How many partitions a topic is to have.

    Raises:
        InvalidRequestError, InvalidReplicaAssignmentError, InvalidReplicationFactorError,
        InvalidPartitionsError: what is asked for contradicts itself or is not possible.
    """
    if new.assignments:
        if new.partitions != -1 or new.replication_factor != -1:
            raise InvalidRequestError(
                "with replica assignments, partitions and replication factor must be -1"
            )
        if sorted(new.assignments) != list(range(len(new.assignments))):
            raise InvalidReplicaAssignmentError(
                f"assigned partitions {sorted(new.assignments)} are not 0, 1, 2 and so on"
            )
        check_assignments(new.assignments.values(), node_id)
        return len(new.assignments)
    if new.replication_factor not in (-1, 1):
        raise InvalidReplicationFactorError(
            f"replication factor {new.replication_factor} is not possible"
        )
    if new.partitions == -1:
        return default
    if new.partitions < 1:
        raise InvalidPartitionsError(f"{new.partitions} is not a number of partitions")
    return new.partitions


def check_assignments(assignments: Iterable[Sequence[int]], node_id: int) -> None:
    """Each partition must have the one broker as its one replica.

    Raises:
        InvalidReplicaAssignmentError: one has others.
    """
    for replicas in assignments:
        if list(replicas) != [node_id]:
            raise InvalidReplicaAssignmentError(
                f"replicas {list(replicas)}: there is one broker, {node_id}"
            )


def fold(name: str) -> str:
    """The name with what metrics take for the same."""
    return name.replace(".", "_")


def collision(name: str, other: str) -> InvalidTopicError:
    """Why ``name`` can't exist beside ``other``."""
    return InvalidTopicError(
        f"topic {name!r} collides with {other!r}",
        hint="Names that differ in '.' and '_' only can't be told apart in metrics.",
    )


def refuse_internal(name: str) -> None:
    """Raises InvalidTopicError where the topic is the broker's own."""
    if is_internal(name):
        raise InvalidTopicError(f"{name!r} is internal: clients can't change or delete it")
