"""The result of opening a partition, from which its log is built.

``recovery`` and ``clean_stop`` make it from a folder, and ``store`` for a new partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidemill.log.config.topic import LogConfig
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.producers import ProducerStates


@dataclass(slots=True)
class OpenedPartition:
    """A partition that was opened.

    Attributes:
        chain: the segments. All that they hold is synced.
        recovery_point: recovery reads the log from this offset.
        topic_id: the id of the topic; None if the file with it was lost.
        producers: the producers; None to load them from their snapshot at first use. Then no
            transaction is open.
        snapshot_offset: offset of that snapshot; -1 if there are no producers.
        new_folder: whether the folder, or its entry in the data folder, is perhaps not synced.
    """

    chain: SegmentChain
    config: LogConfig
    recovery_point: int
    topic_id: UUID | None
    producers: ProducerStates | None = None
    snapshot_offset: int = -1
    new_folder: bool = False
