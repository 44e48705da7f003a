"""Which partitions exist; their leaders and replicas: one broker, nothing to elect or to move.

Answers what admin tools ask in the way Apache Kafka answers on a cluster of one. Knows the catalog
only, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import (
    ElectionNotNeededError,
    InvalidReplicaAssignmentError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
    TidemillError,
    UnknownTopicOrPartitionError,
)
from tidemill.state.catalog import Catalog


def elect_leaders(
    catalog: Catalog, partitions: Sequence[tuple[str, int]]
) -> list[TidemillError | None]:
    """Every partition that exists has its leader already (KIP-460)."""
    outcomes: list[TidemillError | None] = []
    for topic, partition in partitions:
        try:
            _check_exists(catalog, topic, partition)
            raise ElectionNotNeededError(f"partition {topic}-{partition} has its leader")
        except TidemillError as error:
            outcomes.append(error)
    return outcomes


def alter_reassignments(
    catalog: Catalog, node_id: int, changes: Sequence[tuple[str, int, Sequence[int] | None]]
) -> list[TidemillError | None]:
    """Moves to where the partition is succeed, others can't; None cancels, and nothing is running.

    Args:
        changes: (topic, partition, wanted replicas) (KIP-455).
    """
    outcomes: list[TidemillError | None] = []
    for topic, partition, replicas in changes:
        try:
            _check_exists(catalog, topic, partition)
            if replicas is None:
                raise NoReassignmentInProgressError(
                    f"no reassignment of {topic}-{partition} is in progress"
                )
            if list(replicas) != [node_id]:
                raise InvalidReplicaAssignmentError(
                    f"replicas {list(replicas)}: there is one broker, {node_id}"
                )
        except TidemillError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


def move_replicas(
    catalog: Catalog, here: str, path: str, partitions: Sequence[tuple[str, int]]
) -> list[TidemillError | None]:
    """Moving partitions to the folder in which they are succeeds; there is no other (KIP-113)."""
    elsewhere = None
    if path != here:
        elsewhere = LogDirNotFoundError(f"{path} is no log folder of this broker: it has {here}")
    return [missing(catalog, *each) or elsewhere for each in partitions]


def missing(catalog: Catalog, topic: str, partition: int) -> TidemillError | None:
    """Why there is no such partition, or None where there is one."""
    try:
        _check_exists(catalog, topic, partition)
    except UnknownTopicOrPartitionError as error:
        return error
    return None


def _check_exists(catalog: Catalog, topic: str, partition: int) -> None:
    if not 0 <= partition < catalog.topic(topic).partitions:
        raise UnknownTopicOrPartitionError(f"topic {topic!r} has no partition {partition}")
