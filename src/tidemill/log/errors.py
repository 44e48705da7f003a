"""Error types of the log.

Knows the base class only. Errors of the floors above are in ``state.errors`` and ``engine.errors``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.errors import TidemillError


class DataDirLockedError(TidemillError):
    """Another process uses this data folder."""


class FormatVersionError(TidemillError):
    """The data folder has a format version that this version of tidemill can't read."""


class StorageError(TidemillError):
    """A file operation failed, or a stored file can't be used."""

    retriable = True


class DiskFullError(StorageError):
    """The disk is full. The write was refused, and no part of it is readable."""

    default_hint = "Free disk space, lower retention, or delete topics."


class TooManyOpenFilesError(StorageError):
    """A file can't be opened, because the process or the system has too many open files.

    Nothing is wrong with the disk: the operation can be retried.
    """

    default_hint = (
        "Retry: the broker closes files that it does not use. If this is frequent, raise the limit "
        "(ulimit -Hn, LimitNOFILE in systemd), or lower limits.connections."
    )


class SyncFailedError(StorageError):
    """A sync failed. The state of the disk is unknown, so the broker must stop."""

    default_hint = "Check the disk, then start the broker again; it recovers what is really there."


class DataDirLostError(StorageError):
    """The data folder was deleted or renamed while it is in use. The broker must stop.

    Files that are open still take writes, but no restart would find them.
    """

    default_hint = (
        "Restore the folder, or start the broker again with an empty one. What was acknowledged "
        "since the folder disappeared is lost."
    )


class JournalRestoreError(StorageError):
    """A segment lacks what the journal has, and can't be written. The broker must not start.

    A start would discard the journal.
    """


class JournalDamagedError(StorageError):
    """The journal has lost entries, and nothing shows which. The broker must not start.

    Records of any partition can be missing that were acknowledged, and their offsets would be used
    again.
    """

    default_hint = (
        "Nothing was changed. Restore the files of the journal from a copy of the disk. To start "
        "with what is left: tidemill doctor --repair journal. It shows first what can be lost."
    )


class CorruptLogError(StorageError):
    """A stored file is damaged. The log never repairs this by itself.

    Attributes:
        path: the damaged file.
        position: byte position in the file.
        offset: first log offset that can't be read, or None if it is unknown.
    """

    default_hint = (
        "Stop the broker and restore the file from a backup. To give up only what can't be read: "
        "tidemill doctor --repair PARTITION. It shows first what is lost."
    )

    def __init__(
        self,
        message: str,
        *,
        path: str,
        position: int,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.position = position
        self.offset = offset


class CorruptBatchError(TidemillError):
    """A client's record batch is incomplete, has a wrong CRC or contradicts itself."""

    retriable = True


class BadRecord(NamedTuple):
    """A record for which its batch was refused."""

    at: int
    """Its position in the batch, from 0."""
    reason: str


class BadRecordsError(TidemillError):
    """Records of a batch break a rule of the topic. The others are refused with them.

    Attributes:
        bad_records: the first of them, in order. Empty if the batch as a whole is invalid.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, bad_records: Sequence[BadRecord] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.bad_records = tuple(bad_records)


class InvalidRecordError(BadRecordsError):
    """A record is invalid here: it has no key in a compacted topic, or a bad codec or count."""


class DecompressedTooLargeError(InvalidRecordError):
    """The records of a batch have more bytes after decompression than the topic allows."""


class InvalidTimestampError(BadRecordsError):
    """A timestamp is further from the broker's clock than the topic's configs allow."""


class UnsupportedFormatError(TidemillError):
    """The message format is older than v2 (magic 2)."""

    default_hint = "Use a client of 2017 or newer (record batches, magic 2)."


class UnsupportedCompressionError(TidemillError):
    """The codec is unknown, or not allowed in this request version."""


class BatchTooLargeError(TidemillError):
    """A batch is larger than ``max.message.bytes`` of its topic."""

    default_hint = "Raise max.message.bytes on the topic, or lower batch.size at the producer."


class OffsetOutOfRangeError(TidemillError):
    """The offset is below the log's start or above its end."""


class OutOfOrderSequenceError(TidemillError):
    """An idempotent producer's sequence number leaves a gap."""


class DuplicateSequenceError(TidemillError):
    """The batch was appended before, but so long ago that its offset is no longer known."""


class UnknownProducerIdError(TidemillError):
    """The partition has no state for this producer id."""


class InvalidProducerEpochError(TidemillError):
    """A newer instance of this producer has fenced this one."""


class InvalidTxnStateError(TidemillError):
    """The transaction's state does not allow this: none is open, or it is already ending."""


class InvalidTopicError(TidemillError):
    """The topic's name is invalid, or the topic is internal and clients can't change it."""


class InvalidConfigError(TidemillError):
    """A topic or broker config is unknown, malformed, out of range or read-only."""


class TransactionCoordinatorFencedError(TidemillError):
    """A transaction marker carries an older coordinator epoch than the partition knows."""
