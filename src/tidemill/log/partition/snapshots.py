"""Write, find, sync, load and remove the snapshots of a partition's producers; replay batches.

A snapshot holds the producers' state at one offset, in a file that is named after the offset.
What it lacks is rebuilt from the stored batches behind it. Knows the files; ``recovery_point`` and
``recovery`` decide when to write one, and from where to replay.
"""

from __future__ import annotations

from contextlib import suppress

from tidemill import system
from tidemill.log.disk.aborted_index import AbortedTransaction
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import FileSystem, storage_error, storage_errors
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.batch import BatchHeader
from tidemill.log.format.markers import decode_marker
from tidemill.log.names import SNAPSHOT, file_name, offsets_of
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.producers import ProducerStates


def snapshot_path(folder: str, offset: int) -> str:
    """Return the path of the snapshot at ``offset``."""
    return f"{folder}/{file_name(offset, SNAPSHOT)}"


def write_snapshot(chain: SegmentChain, states: ProducerStates) -> None:
    """Write a snapshot at the end of the log, without a sync: a CRC shows whether it is complete.

    A complete snapshot at this offset is kept: it has the same content, and is perhaps the only one
    that is synced.
    """
    path = snapshot_path(chain.folder, chain.head.end_offset)
    fs = chain.env.fs
    with storage_errors("writing", path):
        if not _is_complete(fs, path):
            fs.write_bytes(path, states.encode())


def _is_complete(fs: FileSystem, path: str) -> bool:
    if not fs.exists(path):
        return False
    try:
        ProducerStates.decode(fs.read_bytes(path))
    except ValueError:
        return False
    return True


def drop_old_snapshots(env: Environment, folder: str, keep_from: int) -> None:
    """Remove the snapshots below ``keep_from``.

    Args:
        keep_from: the oldest recovery point that the checkpoint file can still hold.
    """
    fs = env.fs
    with storage_errors("removing old snapshots in", folder):
        for offset in offsets_of(fs.files(folder), SNAPSHOT):
            if offset < keep_from:
                fs.remove(snapshot_path(folder, offset))


def sync_snapshot(env: Environment, folder: str, offset: int) -> None:
    """Make one snapshot durable. Can run in any thread."""
    # A topic can be deleted meanwhile, or a newer snapshot, which is synced, replace this one.
    with env.pool.sync_errors(folder), suppress(FileNotFoundError):
        env.fs.sync_file(snapshot_path(folder, offset))
        env.fs.sync_dir(folder)


def sync_snapshots(env: Environment, folder: str) -> None:
    """Make all snapshots durable before segments are removed.

    After the removal, the snapshots are the only record of producers whose batches were in the
    removed segments.
    """
    with env.pool.sync_errors(folder):
        for offset in offsets_of(env.fs.files(folder), SNAPSHOT):
            env.fs.sync_file(snapshot_path(folder, offset))
        env.fs.sync_dir(folder)


def load_producers(chain: SegmentChain, snapshot_offset: int) -> ProducerStates:
    """Load the producers after a clean stop.

    Read them from the log if the snapshot is damaged or lost.

    Args:
        snapshot_offset: offset of the snapshot; -1 if there is none because there are no producers.
    """
    env = chain.env
    if snapshot_offset < 0:
        return ProducerStates()
    path = snapshot_path(chain.folder, snapshot_offset)
    try:
        states = ProducerStates.decode(env.fs.read_bytes(path))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and system.is_too_many_open(error):
            raise storage_error(error, "reading", path) from error
        states = ProducerStates()
        for segment in chain.segments:
            replay_segment(states, segment, env.clock.now_ms())
        states.unstable.settle(chain.head.end_offset)
        env.report(chain.tp, path, f"producers read from the log, snapshot unusable: {error}")
    states.expire(env.clock.now_ms(), env.producer_expiry_ms)
    return states


def replay_segment(
    states: ProducerStates, segment: Segment, now_ms: int
) -> list[AbortedTransaction]:
    """Apply all batches of a segment to ``states``.

    Returns:
        The entries that the segment's index of aborted transactions must hold.
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
    """Apply one stored, verified batch of a producer to ``states``.

    Returns:
        The transaction that the batch aborts, or None.
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
