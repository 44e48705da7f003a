"""Plain data of share groups, as protocols use it. Knows no protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from tidemill.engine.api import ReadBudget
from tidemill.errors import TidemillError
from tidemill.log.format.batch import Buffer
from tidemill.state.queues.window import Acquired
from tidemill.state.share_partitions.partition import AckBatch as AckBatch

Breathe = Callable[[], Awaitable[None]]
"""Is awaited in long loops, so that other requests can run."""


async def no_pause() -> None:
    """Do not pause."""


class ShareRead(NamedTuple):
    """A partition to acquire records from."""

    topic_id: UUID
    partition: int


class PartitionAcks(NamedTuple):
    """Acknowledgements of a partition's records: ranges, lowest first, without overlaps."""

    topic_id: UUID
    partition: int
    batches: Sequence[AckBatch]


@dataclass(slots=True)
class ShareQuery:
    """A member's request for records.

    Attributes:
        most_records: acquire about so many.
        max_bytes: of the stored batches. A first batch that is larger is returned whole.
        exact: acquire no more than ``most_records``, also if that cuts a batch.
        budget: memory for the bytes; None: no limit.
        breathe: is awaited between partitions.
    """

    group_id: str
    member_id: str
    partitions: Sequence[ShareRead]
    max_wait_ms: int
    most_records: int
    max_bytes: int
    exact: bool = False
    budget: ReadBudget | None = None
    breathe: Breathe = no_pause


@dataclass(slots=True)
class SharedRecords:
    """The records that a member acquired of a partition.

    Attributes:
        acquired: the records that it holds now.
        records: stored batches that contain them, and possibly others.
    """

    error: TidemillError | None = None
    acquired: Sequence[Acquired] = ()
    records: list[Buffer] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The start of a share partition.

    Attributes:
        start: all records below are finished; -1 if the group has not read the partition yet.
        lag: how many records are not finished; -1 if that is not known.
    """

    topic: str
    topic_id: UUID
    partition: int
    start: int = -1
    lag: int = -1
    leader_epoch: int = 0
    error: TidemillError | None = None
