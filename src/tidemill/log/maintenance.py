"""Files beside the segments: producer snapshots, and files that are on their way out.

Knows where they stand and when they may go; ``partition`` and ``recovery`` say when to write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.errors import InvalidRecordError
from tidemill.log.aborted import AbortedTransaction
from tidemill.log.batch import BatchHeader
from tidemill.log.environment import Report
from tidemill.log.files import FileSystem, storage_error
from tidemill.log.names import DELETED, SNAPSHOT
from tidemill.log.producers import ProducerStates
from tidemill.log.segment import Segment
from tidemill.log.transactions import decode_marker

if TYPE_CHECKING:
    from tidemill.log.partition import PartitionLog
    from tidemill.log.producing import ProducingLog


def write_snapshot(log: ProducingLog) -> None:
    """Write the producers as of the log's end; unsynced, for its CRC tells whether it is whole.

    One that stands there already stays: it tells the same, and may be the only one that is durable.

    Raises:
        DiskFullError, StorageError: it can't be written.
    """
    path = log.snapshot_path(log.log_end_offset)
    fs = log.environment.fs
    try:
        if not _is_whole(fs, path):
            fs.write_bytes(path, log.producers.encode())
    except OSError as error:
        raise storage_error(error, "writing", path) from error


def _is_whole(fs: FileSystem, path: str) -> bool:
    if not fs.exists(path):
        return False
    try:
        ProducerStates.decode(fs.read_bytes(path))
    except ValueError:
        return False
    return True


def snapshot_offsets(names: dict[str, int]) -> list[int]:
    """Offsets of the snapshots among a folder's files, ascending."""
    stems = (name[: -len(SNAPSHOT)] for name in names if name.endswith(SNAPSHOT))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def drop_old_snapshots(log: PartitionLog, keep_from: int) -> None:
    """Remove snapshots below the recovery point that the checkpoint file may still name.

    Raises:
        StorageError: the file system refuses.
    """
    fs = log.environment.fs
    try:
        offsets = snapshot_offsets(fs.files(log.folder))
        for offset in [each for each in offsets if each < keep_from]:
            fs.remove(log.snapshot_path(offset))
    except OSError as error:
        raise storage_error(error, "removing old snapshots in", log.folder) from error


def sync_snapshot(log: PartitionLog, offset: int) -> None:
    """Make one snapshot durable; may run in any thread.

    Raises:
        SyncFailedError: the broker must stop.
    """
    env, folder = log.environment, log.folder
    try:
        env.fs.sync_file(log.snapshot_path(offset))
        env.fs.sync_dir(folder)
    except FileNotFoundError:
        return  # the topic was deleted meanwhile, or newer ones are synced and this one went
    except OSError as error:
        raise env.pool.fail_sync(error, folder) from error


def sync_snapshots(log: PartitionLog) -> None:
    """Make the snapshots durable: segments are to go, and only snapshots then tell of producers
    whose batches stood in them.

    Raises:
        SyncFailedError: the broker must stop.
    """
    env = log.environment
    try:
        for offset in snapshot_offsets(env.fs.files(log.folder)):
            env.fs.sync_file(log.snapshot_path(offset))
        env.fs.sync_dir(log.folder)
    except OSError as error:
        raise env.pool.fail_sync(error, log.folder) from error


def load_producers(log: ProducingLog, snapshot_offset: int) -> ProducerStates:
    """The producers after a clean stop; read from the log where the snapshot is damaged.

    Raises:
        CorruptLogError, StorageError: the log can't be read.
    """
    env = log.environment
    if snapshot_offset < 0:
        return ProducerStates()
    path = log.snapshot_path(snapshot_offset)
    try:
        states = ProducerStates.decode(env.fs.read_bytes(path))
    except (OSError, ValueError) as error:
        states = ProducerStates()
        for segment in log.segments:
            replay_producers(states, segment, env.clock.now_ms())
        states.unstable.settle(log.log_end_offset)
        env.reports.append(
            Report(log.tp, path, f"producers read from the log: snapshot unusable ({error})")
        )
    states.expire(env.clock.now_ms(), env.producer_expiry_ms)
    return states


def replay_producers(
    states: ProducerStates, segment: Segment, now_ms: int
) -> list[AbortedTransaction]:
    """Learn the producers of a segment's batches; returns what its index of aborted transactions
    has to hold.

    Raises:
        CorruptLogError, StorageError: a batch can't be read.
    """
    aborted = []
    for position, header in segment.batches():
        if header.producer_id >= 0:
            entry = replay_batch(states, segment, position, header, now_ms)
            if entry is not None:
                aborted.append(entry)
    return aborted


def replay_batch(
    states: ProducerStates, segment: Segment, position: int, header: BatchHeader, now_ms: int
) -> AbortedTransaction | None:
    """Learn what a stored, proven batch of a producer tells; as ``ProducerStates.end``.

    Raises:
        CorruptLogError, StorageError: its marker can't be read.
    """
    if not header.is_control:
        states.update(header, header.base_offset, now_ms)
        return None
    try:
        marker = decode_marker(segment.file.pread(header.size, position))
    except InvalidRecordError as error:
        raise segment.corrupt(str(error), position, header.base_offset) from error
    if marker is None:
        states.see_control(header, now_ms)
        return None
    return states.end(marker, header.base_offset, now_ms)


def doom(log: PartitionLog, segment: Segment) -> None:
    """Rename a segment's files to ``.deleted``; they are removed after ``file.delete.delay.ms``.

    Raises:
        StorageError: the file system refuses.
    """
    env = log.environment
    due = env.clock.monotonic_ms() + log.config.file_delete_delay_ms
    env.doomed.extend((due, path) for path in segment.rename(DELETED))
