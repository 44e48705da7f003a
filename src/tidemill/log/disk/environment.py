"""The environment of all partitions of a store: file system, open handles, mapped indexes, clock.

Knows no partitions. Each partition keeps one reference to it, so that idle partitions stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidemill.clock import Clock
from tidemill.log.disk.files import FileSystem
from tidemill.log.disk.index import MapCache
from tidemill.log.disk.log_file import HandlePool
from tidemill.log.disk.preallocation import Preallocation
from tidemill.log.errors import StorageError
from tidemill.log.names import TopicPartition
from tidemill.native import extension


@dataclass(frozen=True, slots=True)
class Report:
    """The repair of a damaged or incomplete file.

    Attributes:
        tp: the partition; None for a file of the whole data folder.
        what: a sentence that says what was done, and where.
        offset: the first offset concerned, or -1. For a torn tail, this is the offset that its
            first batch would have had.
    """

    tp: TopicPartition | None
    path: str
    what: str
    offset: int = -1

    def __str__(self) -> str:
        partition = "" if self.tp is None else f"{self.tp}: "
        return f"{partition}{self.what} ({self.path})"


@dataclass(frozen=True, slots=True)
class Deletion:
    """A file of a removed segment that is deleted later.

    Attributes:
        due_ms: the monotonic time from which it can be deleted.
        start_offset: the stored start of the log must have reached this offset before the file
            disappears: until then its name shows that the segment was not lost. -1 for files that
            compaction has replaced.
    """

    due_ms: int
    path: str
    tp: TopicPartition
    start_offset: int = -1


class Copies(extension.CopiesFields):
    """Bounds the memory of unsynced batches that are kept for the journal. Closed at first.

    Attributes:
        closed: segments that were closed and are not synced. Recovery needs the journal until then.
    """

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a journal that takes them."""
        return self.limit > 0

    def open(self, limit: int) -> None:
        """Allow so many bytes; 0 ends it."""
        self.limit = limit


@dataclass(slots=True)
class Environment:
    """Everything that the partitions of one data folder share."""

    fs: FileSystem
    pool: HandlePool
    maps: MapCache
    clock: Clock
    producer_expiry_ms: int = 86_400_000
    reports: list[Report] = field(default_factory=list)
    offline: dict[TopicPartition, StorageError] = field(default_factory=dict)
    deletions: list[Deletion] = field(default_factory=list)
    copies: Copies = field(default_factory=Copies)
    preallocation: Preallocation = field(default_factory=Preallocation)
    is_stored_sparse: Callable[[TopicPartition], bool] = lambda _: True
    """Return whether the checkpoint files say that a partition is compacted. Compaction must not
    remove a batch before: recovery would take the gap for damage."""
    checkpoint_writes: Callable[[], Callable[[], None]] = lambda: lambda: None
    """Return a function that writes the checkpoint files, in any thread."""
    on_offline: Callable[[TopicPartition, StorageError], None] | None = None
    """Callback for a partition that goes offline while it is in use."""

    def schedule_deletion(
        self, paths: Iterable[str], delay_ms: int, tp: TopicPartition, start_offset: int = -1
    ) -> None:
        """Remove files after ``delay_ms``; see ``Deletion``. ``LogStore.purge_deleted`` does it."""
        due = self.clock.monotonic_ms() + delay_ms
        self.deletions.extend(Deletion(due, path, tp, start_offset) for path in paths)

    def report(self, tp: TopicPartition | None, path: str, what: str, *, offset: int = -1) -> None:
        """Report a repair; see ``Report``."""
        self.reports.append(Report(tp, path, what, offset))
