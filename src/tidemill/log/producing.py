"""What a partition's log knows of its producers and of their transactions.

Answers questions; what is appended, and when it counts, is ``partition``'s. Producers are read from
their snapshot at first use only: most partitions have none, and no open transaction. Knows no
coordinator and no transactional ids.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from tidemill.errors import TidemillError
from tidemill.log import maintenance
from tidemill.log.aborted import AbortedTransaction
from tidemill.log.batch import HEADER_SIZE, Buffer, parse_header
from tidemill.log.environment import Environment
from tidemill.log.names import SNAPSHOT, TXN_INDEX, TopicPartition, file_name
from tidemill.log.producers import ProducerStates
from tidemill.log.reading import ReadableLog
from tidemill.log.refused import RefusedBatches
from tidemill.log.segment import Segment
from tidemill.log.transactions import OpenTransaction

_BASE_OFFSET = attrgetter("base_offset")
_FIRST_OFFSET = attrgetter("first_offset")


class ProducingLog(ReadableLog):
    """The side of a partition's log that producers and their transactions stand on.

    Attributes:
        folder: where its files are.
        refused: batches that clients were told to send again.
    """

    __slots__ = ("_aborting", "_env", "_producers", "_snapshot_offset", "folder", "refused")

    def __init__(
        self,
        env: Environment,
        tp: TopicPartition,
        folder: str,
        segments: list[Segment],
        log_start_offset: int,
        log_end_offset: int,
        producers: ProducerStates | None,
        snapshot_offset: int,
    ) -> None:
        """
        Args:
            producers: or None to read them from the snapshot when they are needed; then none of
                them has an open transaction.
            snapshot_offset: offset of that snapshot; -1 where there is none because there are no
                producers.
        """
        super().__init__(tp, segments, log_start_offset, log_end_offset)
        self._env = env
        self.folder = folder
        self._producers = producers
        self._snapshot_offset = snapshot_offset
        self._aborting: list[Segment] | None = None
        self.refused = RefusedBatches()

    @property
    def environment(self) -> Environment:
        """What the partition shares with the others."""
        return self._env

    @property
    def producers(self) -> ProducerStates:
        """Idempotent producers; read from the snapshot at first use.

        Raises:
            CorruptLogError, StorageError: they can't be read.
        """
        if self._producers is None:
            self._producers = maintenance.load_producers(self, self._snapshot_offset)
        return self._producers

    def expire_producers(self, now_ms: int, expiry_ms: int) -> int:
        """Forget producers that have been silent for ``expiry_ms``; returns how many.

        Those with an open transaction stay. Those that were not read from their snapshot yet are
        looked at when they are.
        """
        self.refused.expire(now_ms)
        return 0 if self._producers is None else self._producers.expire(now_ms, expiry_ms)

    def remember_refusal(self, records: Buffer, error: TidemillError, now_ms: int) -> None:
        """A client was answered with ``error`` instead of an append. Whoever answers says so: what
        the client has sent behind it must not overtake it.

        Args:
            records: what it sent, proven or not.
        """
        if len(records) >= HEADER_SIZE:
            self.refused.remember(parse_header(records), error, now_ms)

    def snapshot_path(self, offset: int) -> str:
        """Path of the producer snapshot at ``offset``."""
        return f"{self.folder}/{file_name(offset, SNAPSHOT)}"

    # --- transactions ----------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """What ``read_committed`` sees is below it: the first offset of the oldest transaction that
        is open, or whose marker is not synced yet; the high watermark where there is none.
        """
        if self._producers is not None:
            first = self._producers.unstable.first_offset()
            if 0 <= first < self.high_watermark:
                # Its data may be deleted already.
                return max(first, self.log_start_offset)
        return self.high_watermark

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction has no marker yet; reads nothing."""
        return self._producers is not None and bool(self._producers.unstable.open)

    def open_transactions(self) -> list[OpenTransaction]:
        """Transactions without a marker, oldest first."""
        return [] if self._producers is None else self._producers.open_transactions()

    def last_offset_of(self, producer_id: int) -> int:
        """Offset of the last record that a producer has written here; -1 where it is not known.

        Raises:
            CorruptLogError, StorageError: the producers can't be read.
        """
        entry = self.producers.get(producer_id)
        return -1 if entry is None else entry.last_offset

    @property
    def has_aborted_transactions(self) -> bool:
        """Whether ``aborted_transactions`` could find any."""
        return bool(self._with_aborted())

    def aborted_transactions(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Aborted transactions that touch ``[first_offset, end_offset)``.

        Args:
            end_offset: at most the last stable offset.

        Returns:
            (producer id, first offset) of each, by first offset.

        Raises:
            StorageError: their index can't be read.
        """
        entries = self.aborted_entries(first_offset, end_offset)
        return [(entry.producer_id, entry.first_offset) for entry in entries]

    def aborted_entries(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The index's entries of ``aborted_transactions``, in the same order."""
        segments = self._with_aborted()
        if not segments or first_offset >= end_offset:
            return []
        found: list[AbortedTransaction] = []
        for index in range(
            max(bisect_right(segments, first_offset, key=_BASE_OFFSET) - 1, 0), len(segments)
        ):
            segment = segments[index]
            if segment.aborted is None:
                continue
            entries, is_all = segment.aborted.find(
                self._env, segment.path(TXN_INDEX), first_offset, end_offset
            )
            found += entries
            if is_all:
                break
        return sorted(found, key=_FIRST_OFFSET)

    def _with_aborted(self) -> list[Segment]:
        """The segments that hold markers of aborted transactions."""
        if self._aborting is None:
            self._aborting = [each for each in self.segments if each.aborted is not None]
        return self._aborting
