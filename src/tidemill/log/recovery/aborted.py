"""Bring the indexes of aborted transactions up to date when a partition is opened.

After an unclean stop, entries below the offset from which the batches were replayed are trusted:
they were synced with their markers. All later entries come from the replayed batches. A lost or
damaged file below that offset is rebuilt from the whole log.

Knows segments and their index files. ``recovery`` decides whether a stop was unclean and what is
cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidemill.log.disk.aborted_index import (
    AbortedIndex,
    AbortedTransaction,
    decode_aborted,
    encode_aborted,
)
from tidemill.log.disk.checkpoints import StoredIndex
from tidemill.log.disk.environment import Environment
from tidemill.log.disk.segment import Segment
from tidemill.log.format.crc import crc32c
from tidemill.log.names import TXN_INDEX
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.snapshots import replay_segment


def stored_index_fits(env: Environment, segment: Segment, stored: StoredIndex | None) -> bool:
    """Compare a segment's file with its stored size and CRC; the CRC is kept.

    A file that is missing fits where compaction can have removed it.
    """
    path = segment.path(TXN_INDEX)
    index = segment.aborted
    if index is None:
        return stored is None or not segment.dense
    data = env.fs.read_bytes(path)
    index.crc = index.synced_crc = crc32c(data[: index.size])
    return stored is None or (
        len(data) >= stored.size and crc32c(data[: stored.size]) == stored.crc
    )


def complete_indexes(
    env: Environment,
    segments: Sequence[Segment],
    replayed: Sequence[AbortedTransaction],
    replayed_from: int,
    stored: Mapping[int, StoredIndex],
) -> None:
    """Write and sync the index files of all segments where they are incomplete.

    Args:
        replayed: aborted transactions from the replayed batches, in log order.
        replayed_from: offset from which batches were replayed. Entries below it are trusted.
        stored: the stored indexes, by the segment's base offset.
    """
    damaged: list[Segment] = []
    for index, segment in enumerate(segments):
        end = segments[index + 1].base_offset if index + 1 < len(segments) else 1 << 63
        if not stored_index_fits(env, segment, stored.get(segment.base_offset)):
            damaged.append(segment)
            continue
        if segment.aborted is None and end <= replayed_from:
            continue
        data = b"" if segment.aborted is None else env.fs.read_bytes(segment.path(TXN_INDEX))
        try:
            kept = _trusted(data, segment.base_offset, end, replayed_from)
        except ValueError:
            damaged.append(segment)
            continue
        new = [entry for entry in replayed if segment.base_offset <= entry.last_offset < end]
        if end <= replayed_from and not new:
            continue  # the whole file is synced
        _store(env, segment, data, kept + new)
    if damaged:
        rebuild_indexes(env, segments, damaged)


def _trusted(stored: bytes, base: int, end: int, replayed_from: int) -> list[AbortedTransaction]:
    """Return the stored entries below ``replayed_from``.

    Raises:
        ValueError: the whole file is below it, and it is damaged.
    """
    if end <= replayed_from:
        entries = decode_aborted(stored)
        if entries and not (base <= entries[0].last_offset and entries[-1].last_offset < end):
            raise ValueError("its entries belong to another segment")
        return entries
    # The file can be cut or damaged behind the trusted entries.
    return [
        entry
        for entry in decode_aborted(stored, whole=False)
        if base <= entry.last_offset < replayed_from
    ]


def rebuild_indexes(
    env: Environment, segments: Sequence[Segment], damaged: Collection[Segment]
) -> None:
    """Rebuild the indexes of ``damaged`` segments, and report it. Reads the whole log."""
    states = ProducerStates()
    wanted = {id(segment) for segment in damaged}
    for segment in segments:
        entries = replay_segment(states, segment, env.clock.now_ms())
        if id(segment) in wanted:
            _store(env, segment, None, entries)
            what = "lost or damaged index of aborted transactions rebuilt"
            env.report(segment.partition(), segment.path(TXN_INDEX), what)
        segment.file.close()


def _store(
    env: Environment, segment: Segment, stored: bytes | None, entries: list[AbortedTransaction]
) -> None:
    data, path = encode_aborted(entries), segment.path(TXN_INDEX)
    segment.aborted = AbortedIndex(len(data), crc32c(data)) if data else None
    env.maps.drop(path)
    if not data:
        if env.fs.exists(path):
            env.fs.remove(path)
        return
    if data != stored:
        env.fs.write_bytes(path, data)
    with env.pool.sync_errors(path):  # an unchanged file was perhaps never synced
        env.fs.sync_file(path)
        env.fs.sync_dir(segment.folder)
