"""The chain of segments that hold one partition's records.

The chain grows at its end, loses segments at its start, and compaction replaces neighbours in its
middle. Only one thread changes it. Knows no producers, no syncs, and not when segments are removed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from tidemill.log.disk.environment import Environment
from tidemill.log.disk.preallocation import SEGMENT_BYTES
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import StorageError
from tidemill.log.names import DELETED, TopicPartition
from tidemill.native import extension

_BASE_OFFSET = attrgetter("base_offset")


class SegmentChain:
    """The segments of one partition in one folder.

    Args:
        start_offset: the first offset that can be read. It can be inside the first segment.
        end_offset: the offset of the next record.

    Attributes:
        head: the offsets of the log and its active segment, with all else that native code knows of
            the partition (see ``tidemill.native.extension.Head``).
        env: what the partition shares with the others.
        folder: path of the folder with the segments' files.
        segments: oldest first; the last one is active. There is always at least one.
        removed: whether the folder was renamed, to be deleted or set aside.
        failure: the reason why the partition is offline, or None. It is raised for each request,
            ``with_traceback(None)``: otherwise it would keep the frames, and so the buffers, of all
            requests that it has refused.
        closed_bytes: bytes of the segments that were closed since the partition was opened, less
            what the active one had then; ``PartitionLog.appended_bytes`` adds the active one.
        sparse: whether batches can be missing between others, because compaction has removed them.
            True from the time when the topic is configured to be compacted.
    """

    __slots__ = (
        "_with_aborted",
        "closed_bytes",
        "env",
        "failure",
        "folder",
        "head",
        "removed",
        "segments",
        "sparse",
        "tp",
    )

    def __init__(
        self,
        env: Environment,
        tp: TopicPartition,
        folder: str,
        segments: list[Segment],
        start_offset: int,
        end_offset: int,
        *,
        sparse: bool = False,
    ) -> None:
        self.env = env
        self.tp = tp
        self.folder = folder
        self.segments = segments
        self.sparse = sparse
        self.closed_bytes = 0
        self.removed = False
        self.failure: StorageError | None = None
        self._with_aborted: list[Segment] | None = None
        head = self.head = extension.Head()
        head.partition = tp.partition
        head.start_offset = start_offset
        head.end_offset = end_offset
        head.segment = segments[-1]
        head.memory = env.copies

    @property
    def active(self) -> Segment:
        """The last segment, which is the only one that is appended to."""
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        """The size of all segments in bytes, without their indexes."""
        return sum(segment.size for segment in self.segments)

    def index_of(self, offset: int) -> int:
        """Return the index of the segment whose range holds ``offset``; -1 below the first."""
        return bisect_right(self.segments, offset, key=_BASE_OFFSET) - 1

    def holds(self, segment: Segment) -> bool:
        """Return whether the segment is still in the chain: not deleted and not compacted away."""
        index = self.index_of(segment.base_offset)
        return index >= 0 and self.segments[index] is segment

    def with_aborted(self) -> list[Segment]:
        """Return the segments that hold markers of aborted transactions."""
        if self._with_aborted is None:
            self._with_aborted = [each for each in self.segments if each.aborted is not None]
        return self._with_aborted

    def aborted_changed(self) -> None:
        """Drop what ``with_aborted`` remembers: a segment got its first aborted transaction."""
        self._with_aborted = None

    def become_sparse(self) -> None:
        """Record that compaction can remove batches from now on. This is never undone."""
        self.sparse = True
        for segment in self.segments:
            segment.dense = False

    def plan_allocation(self) -> tuple[int, int]:
        """Return position and length of what to allocate behind the active segment.

        The segment before shows how large it can become.
        """
        most = self.segments[-2].size if len(self.segments) > 1 else SEGMENT_BYTES
        return self.env.preallocation.plan(self.segments[-1], most)

    def add(self, segment: Segment) -> None:
        """Add a new active segment."""
        self.segments.append(segment)
        self.head.segment = segment
        self.head.changed = True

    def remove_oldest(self, delay_ms: int) -> Segment:
        """Remove the oldest segment and schedule the deletion of its files.

        Args:
            delay_ms: how long the files stay on disk, with the suffix ``.deleted``.
        """
        renamed = self.segments[0].rename(DELETED)
        segment = self.segments.pop(0)
        self.env.schedule_deletion(renamed, delay_ms, self.tp, self.segments[0].base_offset)
        head = self.head
        head.changed = True
        head.start_offset = max(head.start_offset, self.segments[0].base_offset)
        self._with_aborted = None
        return segment

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Replace closed segments in memory. The caller has replaced the files.

        Args:
            old: neighbours in the chain, without the active segment.
            new: segments that cover the same offsets. They are synced.

        Raises:
            ValueError: ``old`` are not neighbours, or the active segment is among them.
        """
        start = self.segments.index(old[0])
        if self.segments[start : start + len(old)] != list(old):
            raise ValueError(f"{self.tp}: the segments to replace are not neighbours")
        if start + len(old) == len(self.segments):
            raise ValueError(f"{self.tp}: the active segment can't be replaced")
        self.segments[start : start + len(old)] = new
        self._with_aborted = None
        self.head.changed = True

    def go_offline(self, error: StorageError) -> None:
        """Refuse all further use: the content of a file is uncertain."""
        if self.failure is None:
            self.failure = error
            self.head.is_offline = True
            self.env.offline[self.tp] = error
            if self.env.on_offline is not None:
                self.env.on_offline(self.tp, error)

    def cut_back(self) -> None:
        """Remove what a refused append has left in the active segment's file; offline only.

        A restart would take it for records.

        Raises:
            StorageError: the disk refuses that. Call it again later.
        """
        active = self.active
        if active.file.broken:
            active.file.cut_back(active.size)

    def close(self) -> None:
        """Close all files."""
        for segment in self.segments:
            segment.close()

    def moved(self, folder: str) -> None:
        """Use the new path of the folder, which was renamed and will be removed."""
        self.removed = True
        self.folder = folder
        for segment in self.segments:
            segment.moved(folder)
