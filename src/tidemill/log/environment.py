"""What all partitions of a store share: the file system, open handles, mapped indexes, the clock.

Knows no partitions; each of them keeps one reference to it, so that an idle one stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.clock import Clock
from tidemill.errors import StorageError
from tidemill.log.files import FileSystem
from tidemill.log.handles import HandlePool
from tidemill.log.index import MapCache
from tidemill.log.names import TopicPartition


@dataclass(frozen=True, slots=True)
class Report:
    """Something that was found damaged or unfinished, and repaired.

    Attributes:
        tp: the partition.
        path: the file.
        what: what was done, in words.
        position: byte position in the file, or -1.
        removed_bytes: how many bytes were cut off.
        offset: first offset concerned (of a torn tail: the offset its first batch would have had),
            or -1.
    """

    tp: TopicPartition
    path: str
    what: str
    position: int = -1
    removed_bytes: int = 0
    offset: int = -1

    def __str__(self) -> str:
        return f"{self.tp}: {self.what} ({self.path})"


@dataclass(slots=True)
class Environment:
    """Shared by all partitions of one data folder."""

    fs: FileSystem
    pool: HandlePool
    maps: MapCache
    clock: Clock
    producer_expiry_ms: int = 86_400_000
    reports: list[Report] = field(default_factory=list)
    offline: dict[TopicPartition, StorageError] = field(default_factory=dict)
    doomed: list[tuple[int, str]] = field(default_factory=list)
    """(monotonic ms, path) of files to remove once that time has come."""
    on_offline: Callable[[TopicPartition, StorageError], None] | None = None
    """Called when a partition goes offline while it is in use."""

    def report_file(self, path: str, what: str) -> None:
        """Report a repair of a file that belongs to no partition."""
        self.reports.append(Report(TopicPartition("", -1), path, what))
