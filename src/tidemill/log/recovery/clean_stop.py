"""The manifest of a clean stop: write it, read it, and open partitions by it.

The manifest is written last when the store closes. It describes each partition, so that the next
start opens it without reading its log. It is trusted for a partition as long as the log files have
the sizes that it says; otherwise ``recovery`` opens the partition. ``disk.checkpoints`` has the
format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from tidemill.log.config.topic import LogConfig
from tidemill.log.disk.aborted_index import AbortedIndex
from tidemill.log.disk.checkpoints import (
    MANIFEST,
    ManifestEntry,
    StoredIndex,
    decode_manifest,
    encode_manifest,
)
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import storage_errors
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import StorageError, SyncFailedError
from tidemill.log.journal.journal import Journal
from tidemill.log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    REPLACED,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    file_name,
)
from tidemill.log.partition.chain import SegmentChain
from tidemill.log.partition.partition import OpenedPartition, PartitionLog
from tidemill.log.partition.snapshots import load_producers
from tidemill.log.recovery.aborted import rebuild_indexes, stored_index_fits
from tidemill.log.recovery.unfinished import TEMPORARY


def take_manifest(env: Environment, data_dir: str) -> dict[TopicPartition, ManifestEntry] | None:
    """Read the manifest and remove it durably: a crash from now on is an unclean stop.

    Returns:
        The entries; None if there is no manifest, or if it is damaged. The damage is reported.
    """
    fs, path = env.fs, f"{data_dir}/{MANIFEST}"
    if not fs.exists(path):
        return None
    try:
        manifest = decode_manifest(fs.read_bytes(path))
    except (ValueError, KeyError, TypeError) as error:
        manifest = None
        env.report(None, path, f"damaged manifest dropped, all partitions are recovered: {error}")
    fs.remove(path)
    fs.sync_dir(data_dir)
    return manifest


def write_manifest(env: Environment, data_dir: str, entries: Iterable[ManifestEntry]) -> None:
    """Write the manifest. Partitions without an entry are recovered at the next start."""
    path = f"{data_dir}/{MANIFEST}"
    with storage_errors("writing", path):
        env.fs.write_atomic(path, encode_manifest(entries))


def sync_offline(logs: Iterable[PartitionLog], journal: Journal) -> bool:
    """Sync the logs that went offline, without what refused appends have left; blocks.

    Returns:
        Whether none of them needs the journal now.
    """
    for log in logs:
        if log.failure is None:
            continue
        with suppress(StorageError):
            log.chain.cut_back()
        try:
            log.flush()
        except SyncFailedError:
            raise
        except StorageError:  # a file can't be opened
            if journal.is_needed_by(log):
                return False
    return True


def manifest_entry(log: PartitionLog) -> ManifestEntry:
    """Return the manifest's entry for a partition that is stopped."""
    return ManifestEntry(
        log.tp,
        log.topic_id,
        log.log_start_offset,
        log.log_end_offset,
        log.snapshot_offset,
        [
            (
                each.base_offset,
                each.size,
                each.max_timestamp,
                each.created_ms,
                0 if each.aborted is None else each.aborted.size,
            )
            for each in log.segments
        ],
        log.has_open_transactions,
    )


def open_stopped(
    env: Environment,
    folder: str,
    config: LogConfig,
    entry: ManifestEntry,
    stored: Mapping[int, StoredIndex],
    *,
    sparse: bool,
) -> OpenedPartition | None:
    """Open a partition by its manifest entry; None if the files are not as it says.

    Args:
        stored: the stored indexes of aborted transactions, by the segment's base offset.
        sparse: whether compaction has perhaps removed batches.
    """
    names = env.fs.files(folder)
    if not _is_unchanged(env, folder, names, entry):
        return None
    chain = SegmentChain(
        env,
        entry.tp,
        folder,
        _open_segments(env, folder, config, entry, names, stored, sparse=sparse),
        entry.log_start_offset,
        entry.log_end_offset,
        sparse=sparse,
    )
    snapshot = entry.snapshot_offset
    producers = None
    if entry.has_open_transactions or (
        snapshot >= 0 and file_name(snapshot, SNAPSHOT) not in names
    ):
        producers = load_producers(chain, snapshot)
        producers.unstable.settle(chain.head.end_offset)
    return OpenedPartition(
        chain,
        config,
        recovery_point=chain.head.end_offset,
        topic_id=entry.topic_id,
        producers=producers,
        snapshot_offset=snapshot,
    )


def _open_segments(
    env: Environment,
    folder: str,
    config: LogConfig,
    entry: ManifestEntry,
    names: dict[str, int],
    stored: Mapping[int, StoredIndex],
    *,
    sparse: bool,
) -> list[Segment]:
    segments, damaged = [], []
    ends = [base for base, *_ in entry.segments[1:]] + [entry.log_end_offset]
    for (base, size, latest, created_ms, aborted), end in zip(entry.segments, ends, strict=True):
        segment = Segment(
            env,
            folder,
            base,
            size,
            latest,
            created_ms=created_ms,
            end_offset=end,
            dense=not sparse,
        )
        if size and not (file_name(base, INDEX) in names and file_name(base, TIME_INDEX) in names):
            segment.rebuild_index(config.index_interval_bytes)
        if aborted:
            segment.aborted = AbortedIndex(aborted)
        if names.get(file_name(base, TXN_INDEX), 0) != aborted or not stored_index_fits(
            env, segment, stored.get(base)
        ):
            damaged.append(segment)
        segments.append(segment)
    if damaged:
        rebuild_indexes(env, segments, damaged)
    return segments


def _is_unchanged(
    env: Environment, folder: str, names: dict[str, int], entry: ManifestEntry
) -> bool:
    """Return whether the files are as the last stop left them; schedule deletions of old files."""
    logs = {name: size for name, size in names.items() if name.endswith(LOG)}
    unfinished = False
    for name in names:
        if name.endswith((DELETED, REPLACED)):
            start = entry.segments[0][0] if name.endswith(DELETED) else -1
            env.schedule_deletion([f"{folder}/{name}"], 0, entry.tp, start)
        elif name.endswith((CLEANED, SWAP, TEMPORARY)):
            unfinished = True
    if logs != {file_name(base, LOG): size for base, size, *_ in entry.segments}:
        what = "partition recovered: its files have changed since the clean stop"
        env.report(entry.tp, folder, what)
        return False
    return not unfinished
