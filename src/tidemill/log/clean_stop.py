"""The mark of a clean stop, and opening partitions by it without a look into a log.

The manifest, written last, is that mark; it is believed of a partition as long as the files are
there with the sizes it says. Otherwise ``recovery`` opens it. Its format is in ``checkpoints``.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.log.aborted import AbortedIndex
from tidemill.log.aborted_recovery import rebuild_indexes
from tidemill.log.checkpoints import MANIFEST, ManifestEntry, decode_manifest, encode_manifest
from tidemill.log.config import LogConfig
from tidemill.log.environment import Environment, Report
from tidemill.log.files import storage_error
from tidemill.log.leftovers import TEMPORARY
from tidemill.log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    file_name,
)
from tidemill.log.partition import PartitionLog
from tidemill.log.segment import Segment


def take_manifest(env: Environment, data_dir: str) -> dict[TopicPartition, ManifestEntry] | None:
    """Read the manifest and remove it for good: from now on the last stop is not clean.

    Returns:
        None where there is none, or it is damaged, which is reported.

    Raises:
        OSError: the file system refuses.
    """
    fs, path = env.fs, f"{data_dir}/{MANIFEST}"
    if not fs.exists(path):
        return None
    try:
        manifest = decode_manifest(fs.read_bytes(path))
    except (ValueError, KeyError) as error:
        manifest = None
        env.report_file(path, f"manifest dropped, partitions are recovered: {error}")
    fs.remove(path)
    fs.sync_dir(data_dir)
    return manifest


def write_manifest(env: Environment, data_dir: str, entries: Iterable[ManifestEntry]) -> None:
    """Mark the stop as clean; partitions without an entry are recovered at the next start.

    Raises:
        DiskFullError, StorageError: it can't be written.
    """
    path = f"{data_dir}/{MANIFEST}"
    try:
        env.fs.write_atomic(path, encode_manifest(entries))
    except OSError as error:
        raise storage_error(error, "writing", path) from error


def open_stopped(
    env: Environment, folder: str, config: LogConfig, entry: ManifestEntry
) -> PartitionLog | None:
    """Open a partition by the manifest, or None where the files are not as it says.

    Raises:
        CorruptLogError, StorageError: a lost index, or producers, can't be read from the log.
        OSError: the file system refuses.
    """
    names = env.fs.files(folder)
    if not _is_as_left(env, folder, names, entry):
        return None
    segments, damaged = [], []
    for base, size, latest, created_ms, aborted in entry.segments:
        segment = Segment(env, folder, base, size, latest, created_ms=created_ms)
        if size and not (file_name(base, INDEX) in names and file_name(base, TIME_INDEX) in names):
            segment.rebuild_index(config.index_interval_bytes)
        if aborted:
            segment.aborted = AbortedIndex(aborted)
        if names.get(file_name(base, TXN_INDEX), 0) != aborted:
            damaged.append(segment)
        segments.append(segment)
    if damaged:
        rebuild_indexes(env, segments, damaged)
    snapshot = entry.snapshot_offset
    log = PartitionLog(
        env,
        entry.tp,
        folder,
        config,
        segments,
        log_start_offset=entry.log_start_offset,
        log_end_offset=entry.log_end_offset,
        recovery_point=entry.log_end_offset,
        topic_id=entry.topic_id,
        snapshot_offset=snapshot,
    )
    if entry.has_open_transactions or (
        snapshot >= 0 and file_name(snapshot, SNAPSHOT) not in names
    ):
        log.producers.unstable.settle(log.log_end_offset)  # reads them now
    return log


def _is_as_left(env: Environment, folder: str, names: dict[str, int], entry: ManifestEntry) -> bool:
    logs = {name: size for name, size in names.items() if name.endswith(LOG)}
    leftovers = False
    for name in names:
        if name.endswith(DELETED):
            env.doomed.append((0, f"{folder}/{name}"))
        elif name.endswith((CLEANED, SWAP, TEMPORARY)):
            leftovers = True
    if logs != {file_name(base, LOG): size for base, size, *_ in entry.segments}:
        env.reports.append(Report(entry.tp, folder, "files are not as they were left: recovered"))
        return False
    return not leftovers
