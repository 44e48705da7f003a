"""Open a partition after an unclean stop: verify its segments, and cut off a torn tail.

All records below the recovery point were synced, so damage there is an error. What the journal
proves above the point is restored first, and must be there then. Behind that, the first invalid
batch ends the log: what follows was not acknowledged, and is cut off and reported. Without a
journal, only an invalid end without a valid batch behind it is taken for a torn write, and other
damage is an error. Interrupted deletions and compactions are finished or dropped.

Segments follow each other without a gap: the last batch of a closed segment ends where the next
segment begins. Compaction keeps that batch, or at least its header. So recovery notices a missing
segment, and a segment that was cut at the end of a batch.

Source for interrupted file operations: Apache Kafka's ``LogLoader``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from uuid import UUID

from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.aborted_index import AbortedIndex
from tidemill.log.disk.checkpoints import ManifestEntry, StoredIndex
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import storage_errors
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import CorruptLogError
from tidemill.log.journal.reading import Proof
from tidemill.log.journal.restoring import restore
from tidemill.log.names import (
    DELETED,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TXN_INDEX,
    TopicPartition,
    file_name,
    offsets_of,
)
from tidemill.log.offset_checkpoints import OffsetCheckpoints
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.partition import OpenedPartition
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.snapshots import snapshot_path
from tidemill.log.partition.sync import METADATA
from tidemill.log.recovery.aborted import complete_indexes
from tidemill.log.recovery.unfinished import finish_file_operations
from tidemill.log.recovery.verify import SegmentVerifier, refuse_if_valid_follows


def recover_partition(
    env: Environment,
    tp: TopicPartition,
    folder: str,
    config: LogConfig,
    *,
    recovery_point: int,
    stored: StoredLog,
    topic_id: UUID | None,
    proof: Proof | None = None,
) -> OpenedPartition:
    """Open a partition whose files are perhaps incomplete.

    Args:
        recovery_point: offset up to which the log was synced.
        stored: where the log begins, and whether batches can be missing in it.
        topic_id: the id of the topic; None if the file with it was lost.
        proof: what the journal proves of the partition; None if no journal can say it.
    """
    with storage_errors("recovering", folder):
        recovery = _Recovery(env, tp, folder, config, recovery_point, stored, proof)
        return recovery.run(topic_id)


@dataclass(frozen=True, slots=True)
class StoredLog:
    """The start and the state of a log that the checkpoint files have.

    Attributes:
        start_offset: the first offset that can be read.
        is_start_proven: whether the first segment must hold that offset. False if an earlier
            version of tidemill, or no file, has stored it.
        is_sparse: whether compaction has perhaps removed batches.
        aborted: the stored indexes of aborted transactions, by the segment's base offset.
    """

    start_offset: int = 0
    is_start_proven: bool = False
    is_sparse: bool = True
    aborted: Mapping[int, StoredIndex] = field(default_factory=dict)


def stored_log(
    checkpoints: OffsetCheckpoints, tp: TopicPartition, entry: ManifestEntry | None
) -> StoredLog:
    """Return what the checkpoint files and the manifest say about the start of a log."""
    is_sparse = checkpoints.is_sparse(tp)
    if entry is not None:
        return StoredLog(entry.log_start_offset, True, is_sparse, checkpoints.aborted_of(tp))
    is_proven = checkpoints.proven_start(tp) >= 0
    start = checkpoints.log_starts.get(tp, 0)
    return StoredLog(start, is_proven, is_sparse, checkpoints.aborted_of(tp))


def check_first_segment(folder: str, first: int, names: Iterable[str], stored: StoredLog) -> None:
    """Compare the first segment with the stored start of the log.

    Args:
        names: the files in the folder.
    """
    start = stored.start_offset
    if not stored.is_start_proven or first <= start:
        return
    # Retention and DeleteRecords rename the files of old segments. The new start is stored before
    # these files disappear.
    removed = offsets_of(names, LOG + DELETED)
    if removed and removed[0] <= start and removed[-1] < first:
        return
    raise CorruptLogError(
        f"{folder} has no segment with the offsets {start} to {first - 1}: the first segment "
        f"begins at {first}, but the log begins at {start}",
        path=f"{folder}/{file_name(start, LOG)}",
        position=0,
        offset=start,
    )


class MissingSegmentsError(CorruptLogError):
    """The folder of a partition has no segment. Every partition has one."""

    def __init__(self, folder: str, log_start: int, recovery_point: int) -> None:
        synced = (
            f", but offsets {log_start} to {recovery_point - 1} were synced"
            if recovery_point > log_start
            else ""
        )
        super().__init__(
            f"{folder} has no segments{synced}",
            path=folder,
            position=0,
            offset=log_start,
            hint="Restore the folder from a backup, delete the topic, or let the log continue "
            f"without these records: tidemill doctor --repair {folder.rpartition('/')[2]}",
        )


@dataclass(slots=True, eq=False, repr=False)
class _Recovery:
    """One recovery of one partition.

    Attributes:
        producers: the producers, from the snapshot at ``producers_from`` and the batches behind it.
    """

    env: Environment
    tp: TopicPartition
    folder: str
    config: LogConfig
    recovery_point: int
    stored: StoredLog
    proof: Proof | None
    producers: ProducerStates = field(default_factory=ProducerStates)
    producers_from: int = 0
    segments: list[Segment] = field(default_factory=list)

    def run(self, topic_id: UUID | None) -> OpenedPartition:
        names = finish_file_operations(self.env, self.tp, self.folder)
        if self.proof is not None and not restore(
            self.env,
            self.tp,
            self.folder,
            names,
            self.proof,
            recovery_point=self.recovery_point,
            is_sparse=self.stored.is_sparse,
        ):
            self.proof = None
        self._find_segments(names)
        self._load_snapshot(names)
        verifier = SegmentVerifier(
            self.env,
            self.config.index_interval_bytes,
            self.recovery_point,
            self.producers,
            self.producers_from,
            -1 if self.proof is None else self.proof.end_offset,
            self.proof is None or self.proof.is_complete,
        )
        end = self._verify_segments(verifier)
        if end < self.stored.start_offset:
            first = self.stored.start_offset
            raise self._ends_early(end, f"its first record had offset {first}")
        self._drop_snapshots_above(names, end)
        complete_indexes(
            self.env, self.segments, verifier.aborted, self.producers_from, self.stored.aborted
        )
        self.producers.unstable.settle(end)
        self.producers.expire(self.env.clock.now_ms(), self.env.producer_expiry_ms)
        if end > self.recovery_point:
            self._make_durable(names, end)
        chain = SegmentChain(
            self.env,
            self.tp,
            self.folder,
            self.segments,
            max(self.stored.start_offset, self.segments[0].base_offset),
            end,
            sparse=self.stored.is_sparse,
        )
        chain.head.changed = True
        return OpenedPartition(
            chain,
            self.config,
            recovery_point=end,
            topic_id=topic_id,
            producers=self.producers,
            # The folder's entry of a segment that was started just before the stop is perhaps not
            # synced. Syncing every idle folder now would take long, so it is done before the next
            # write is acknowledged.
            new_folder=end <= self.recovery_point,
        )

    def _make_durable(self, names: dict[str, int], end: int) -> None:
        """Sync what was perhaps in the page cache only, and write a snapshot at the log's end.

        The recovery point can then move to the end, because all batches are verified.
        """
        for segment in self.segments:
            if segment.end_offset > self.recovery_point:
                segment.file.truncate(segment.size)  # frees blocks that were allocated behind it
        snapshot = snapshot_path(self.folder, end)
        self.env.fs.write_bytes(snapshot, self.producers.encode())
        with self.env.pool.sync_errors(self.folder):
            self.env.fs.sync_file(snapshot)
            if METADATA in names:
                self.env.fs.sync_file(f"{self.folder}/{METADATA}")
            self.env.fs.sync_dir(self.folder)

    # --- finding files ---------------------------------------------------------------------------

    def _find_segments(self, names: dict[str, int]) -> None:
        bases = offsets_of(names, LOG)
        known = set(bases)
        if not bases:
            raise MissingSegmentsError(self.folder, self.stored.start_offset, self.recovery_point)
        check_first_segment(self.folder, bases[0], names, self.stored)
        removed = [f"{self.folder}/{name}" for name in names if name.endswith(DELETED)]
        self.env.schedule_deletion(removed, 0, self.tp, bases[0])
        for suffix in SEGMENT_SUFFIXES[1:]:
            for offset in set(offsets_of(names, suffix)) - known:
                self.env.fs.remove(f"{self.folder}/{file_name(offset, suffix)}")
        # Finish deletions that a crash has interrupted: remove segments below the log's start.
        while len(bases) > 1 and bases[1] <= self.stored.start_offset:
            base = bases.pop(0)
            for suffix in SEGMENT_SUFFIXES:
                if file_name(base, suffix) in names:
                    self.env.fs.remove(f"{self.folder}/{file_name(base, suffix)}")
        for base, following in zip_longest(bases, bases[1:]):
            segment = Segment(
                self.env,
                self.folder,
                base,
                names[file_name(base, LOG)],
                created_ms=self.env.clock.now_ms(),
                end_offset=-1 if following is None else following,
                dense=not self.stored.is_sparse,
            )
            aborted = names.get(file_name(base, TXN_INDEX))
            if aborted is not None:
                segment.aborted = AbortedIndex(aborted)
            self.segments.append(segment)

    def _remove(self, segment: Segment) -> None:
        segment.close()
        for suffix in SEGMENT_SUFFIXES:
            if self.env.fs.exists(segment.path(suffix)):
                self.env.fs.remove(segment.path(suffix))

    def _load_snapshot(self, names: dict[str, int]) -> None:
        # The snapshot at the first segment holds the producers of the deleted segments before it.
        newest = max(self.recovery_point, self.segments[0].base_offset)
        for offset in reversed(offsets_of(names, SNAPSHOT)):
            if offset > newest:
                continue
            path = snapshot_path(self.folder, offset)
            try:
                self.producers = ProducerStates.decode(self.env.fs.read_bytes(path))
            except ValueError as error:
                self.env.report(self.tp, path, f"damaged producer snapshot dropped: {error}")
                self.env.fs.remove(path)
                del names[file_name(offset, SNAPSHOT)]
                continue
            self.producers_from = offset
            return
        self.producers_from = self.segments[0].base_offset

    def _drop_snapshots_above(self, names: dict[str, int], end: int) -> None:
        # Other batches will get these offsets.
        above = [each for each in offsets_of(names, SNAPSHOT) if each > end]
        for offset in above:
            self.env.fs.remove(snapshot_path(self.folder, offset))
        if above:
            self.env.fs.sync_dir(self.folder)

    # --- verifying segments ----------------------------------------------------------------------

    def _verify_segments(self, verifier: SegmentVerifier) -> int:
        """Check or scan each segment; return the log's end offset."""
        scan_from = min(self.recovery_point, self.producers_from)
        end = self.segments[0].base_offset
        index = 0
        while index < len(self.segments):
            segment = self.segments[index]
            following = self.segments[index + 1 :]
            next_base = following[0].base_offset if following else None
            if next_base is not None and next_base <= scan_from:
                end = verifier.check_closed(segment)
            else:
                end = verifier.scan(segment, scan_from, following)
            if following and end != next_base:
                self._drop_following(segment, end, following, verifier)
            segment.end_offset = end
            index += 1
        if end < self.recovery_point and end >= self.stored.start_offset:
            raise self._ends_early(end, f"it was synced up to offset {self.recovery_point}")
        proven = 0 if self.proof is None else self.proof.end_offset
        if end < proven and proven > self.stored.start_offset:
            raise self._ends_early(
                end,
                f"the journal proves records up to offset {proven - 1}, and does not have all of "
                "them any more",
            )
        return end

    def _ends_early(self, end: int, but: str) -> CorruptLogError:
        last = self.segments[-1]
        return last.corrupt(f"the log ends here, but {but}", last.size, end)

    def _drop_following(
        self, segment: Segment, end: int, following: list[Segment], verifier: SegmentVerifier
    ) -> None:
        """Remove the segments behind one that ends too early.

        They must have no valid batch, or none that was promised.
        """
        why = f"it ends at offset {end}, the next segment begins at {following[0].base_offset}"
        if end < self.recovery_point and following[0].base_offset <= self.recovery_point:
            raise segment.corrupt(why, segment.size, end)
        what = "segment behind lost records removed; none of its records was acknowledged"
        if not verifier.nothing_promised_from(end):
            refuse_if_valid_follows(segment, segment.size, end, why, following)
            what = "segment without a valid batch removed"
        for later in following:
            self.env.report(self.tp, later.path(), what)
            self._remove(later)
            self.segments.remove(later)
        self.env.fs.sync_dir(self.folder)
