"""Leaders and replicas of partitions: there is one broker, so nothing is elected or moved.

Answers what admin tools ask in the way Apache Kafka answers on a cluster of one. Knows which
partitions exist, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.engine.door import Door
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.errors import (
    ElectionNotNeededError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
)
from tidemill.state.errors import InvalidReplicaAssignmentError


def elect_leaders(door: Door, partitions: Sequence[tuple[str, int]]) -> list[TidemillError]:
    """Return an error for each partition: those that exist have their leader already (KIP-460)."""
    return [
        _refusal(door, topic, partition)
        or ElectionNotNeededError(f"partition {topic}-{partition} has its leader")
        for topic, partition in partitions
    ]


def alter_reassignments(
    door: Door, node_id: int, changes: Sequence[tuple[str, int, Sequence[int] | None]]
) -> list[TidemillError | None]:
    """Return None or an error for each change: a partition can only stay where it is.

    Args:
        changes: (topic, partition, replicas) (KIP-455). Replicas None cancels a reassignment, and
            none is ever in progress.
    """
    return [
        _refusal(door, topic, partition) or _refused_move(f"{topic}-{partition}", node_id, replicas)
        for topic, partition, replicas in changes
    ]


def _refused_move(
    partition: str, node_id: int, replicas: Sequence[int] | None
) -> TidemillError | None:
    if replicas is None:
        return NoReassignmentInProgressError(f"no reassignment of {partition} is in progress")
    if list(replicas) != [node_id]:
        return InvalidReplicaAssignmentError(
            f"invalid replicas {list(replicas)} of {partition}: the only broker is {node_id}"
        )
    return None


def move_replicas(
    door: Door, path: str, partitions: Sequence[tuple[str, int]]
) -> list[TidemillError | None]:
    """Return None or an error for each partition: there is one folder to move to (KIP-113)."""
    here = str(door.storage.path)
    elsewhere = None
    if path != here:
        elsewhere = LogDirNotFoundError(f"{path} is not a log folder of this broker: it has {here}")
    return [_refusal(door, *each) or elsewhere for each in partitions]


def _refusal(door: Door, topic: str, partition: int) -> TidemillError | None:
    """Return an error where the principal can't alter the cluster, or the partition is missing."""
    try:
        door.topics.check_alterable(topic, partition)
    except TidemillError as error:
        return error
    return None
