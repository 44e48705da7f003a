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


def elect_leader(door: Door, topic: str, partition: int) -> TidemillError:
    """Return an error: a partition that exists has its leader already (KIP-460)."""
    return _refusal(door, topic, partition) or ElectionNotNeededError(
        f"partition {topic}-{partition} has its leader"
    )


def alter_reassignment(
    door: Door, node_id: int, topic: str, partition: int, replicas: Sequence[int] | None
) -> TidemillError | None:
    """Return None or an error: a partition can only stay where it is (KIP-455).

    Args:
        replicas: None cancels a reassignment, and none is ever in progress.
    """
    refusal = _refusal(door, topic, partition)
    if refusal is not None:
        return refusal
    name = f"{topic}-{partition}"
    if replicas is None:
        return NoReassignmentInProgressError(f"no reassignment of {name} is in progress")
    if list(replicas) != [node_id]:
        return InvalidReplicaAssignmentError(
            f"invalid replicas {list(replicas)} of {name}: the only broker is {node_id}"
        )
    return None


def move_replica(door: Door, path: str, topic: str, partition: int) -> TidemillError | None:
    """Return None or an error: there is one folder to move to (KIP-113)."""
    here = str(door.storage.path)
    refusal = _refusal(door, topic, partition)
    if refusal is None and path != here:
        return LogDirNotFoundError(f"{path} is not a log folder of this broker: it has {here}")
    return refusal


def _refusal(door: Door, topic: str, partition: int) -> TidemillError | None:
    """Return an error where the principal can't alter the cluster, or the partition is missing."""
    try:
        door.topics.check_alterable(topic, partition)
    except TidemillError as error:
        return error
    return None
