"""Open one partition of a data folder when the store is opened.

After a clean stop a partition is opened by its manifest entry, otherwise it is recovered. A
partition that can't be opened goes offline with its error, and never stops the others. Knows what
the checkpoint files say; not the engine's catalog.
"""

from __future__ import annotations

import struct
from uuid import UUID

from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.checkpoints import ManifestEntry, decode_metadata, decode_partition
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem, storage_error
from tidemill.log.errors import CorruptLogError, JournalRestoreError, StorageError, SyncFailedError
from tidemill.log.journal.reading import JournalContent
from tidemill.log.names import TopicPartition
from tidemill.log.offset_checkpoints import OffsetCheckpoints
from tidemill.log.partition.partition import OpenedPartition, PartitionLog
from tidemill.log.partition.sync import METADATA
from tidemill.log.recovery.clean_stop import open_stopped
from tidemill.log.recovery.recovery import recover_partition, stored_log

_UNFORESEEN = (ArithmeticError, LookupError, TypeError, ValueError, struct.error)
"""Errors of code that reads a damaged file which no check has refused."""


def open_partition(
    env: Environment,
    tp: TopicPartition,
    folder: str,
    config: LogConfig,
    entry: ManifestEntry | None,
    checkpoints: OffsetCheckpoints,
    proven: JournalContent,
) -> PartitionLog | None:
    """Open a partition; None if it is offline now.

    Args:
        entry: its entry in the manifest of a clean stop, if there is one.

    Raises:
        SyncFailedError: the broker must stop.
        JournalRestoreError: acknowledged records can't be restored, so the broker must not start.
    """
    try:
        opened = _open(env, tp, folder, config, entry, checkpoints, proven)
    except (SyncFailedError, JournalRestoreError):
        raise
    except StorageError as error:
        env.offline[tp] = error
        return None
    except OSError as error:
        env.offline[tp] = storage_error(error, "opening", folder)
        return None
    except _UNFORESEEN as error:
        env.offline[tp] = CorruptLogError(
            f"{folder} can't be opened: {type(error).__name__}: {error}", path=folder, position=0
        )
        return None
    log = PartitionLog(opened)
    log.first_dirty_offset = checkpoints.first_dirty.get(tp, 0)
    return log


def _open(
    env: Environment,
    tp: TopicPartition,
    folder: str,
    config: LogConfig,
    entry: ManifestEntry | None,
    checkpoints: OffsetCheckpoints,
    proven: JournalContent,
) -> OpenedPartition:
    if entry is not None:
        opened = open_stopped(
            env,
            folder,
            config,
            entry,
            checkpoints.aborted_of(tp),
            sparse=checkpoints.is_sparse(tp),
        )
        if opened is not None:
            return opened
    check_partition(env.fs, tp, folder)
    recovery_point = checkpoints.recovery_points.get(tp, 0)
    if entry is not None:
        recovery_point = max(recovery_point, entry.log_end_offset)
    topic_id = _read_topic_id(env, tp, folder)
    proof = None
    if entry is None:
        proof = proven.proof(tp, None if topic_id is None else topic_id.bytes)
    try:
        opened = recover_partition(
            env,
            tp,
            folder,
            config,
            recovery_point=recovery_point,
            stored=stored_log(checkpoints, tp, entry),
            topic_id=topic_id,
            proof=proof,
        )
    except StorageError:
        if proof is not None:
            # This start discards the journal. The next one must still know what is missing.
            known = checkpoints.recovery_points.get(tp, 0)
            checkpoints.recovery_points[tp] = max(known, proof.end_offset)
        raise
    if entry is not None and opened.chain.head.end_offset > entry.log_end_offset:
        active = opened.chain.active
        raise active.corrupt(
            f"the log ends at offset {opened.chain.head.end_offset - 1}, but at the clean stop it "
            f"ended at {entry.log_end_offset - 1}: some of its records were not written here",
            active.size,
            entry.log_end_offset,
        )
    return opened


def check_partition(fs: FileSystem, tp: TopicPartition, folder: str) -> None:
    """Compare the number of a partition with the one in its folder, if that is there.

    After a clean stop that is done only if the sizes of files have changed. It would make the start
    of a broker with thousands of partitions longer.

    Raises:
        CorruptLogError: folders were exchanged, so the log has the records of another partition.
    """
    path = f"{folder}/{METADATA}"
    try:
        found = decode_partition(fs.read_bytes(path))
    except (FileNotFoundError, ValueError):
        return
    if found is not None and found != tp.partition:
        raise CorruptLogError(
            f"{folder} has the records of partition {found} of its topic: folders were exchanged",
            path=path,
            position=0,
            hint="Stop the broker and give each folder its own name. Nothing was changed.",
        )


def _read_topic_id(env: Environment, tp: TopicPartition, folder: str) -> UUID | None:
    path = f"{folder}/{METADATA}"
    if not env.fs.exists(path):
        env.report(tp, path, "the file with the topic id is missing")
        return None
    try:
        return decode_metadata(env.fs.read_bytes(path))
    except ValueError as error:
        # The file is synced with the first write, so no write was acknowledged.
        env.report(tp, path, f"damaged topic id ignored: {error}")
        return None
