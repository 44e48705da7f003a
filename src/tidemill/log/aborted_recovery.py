"""The indexes of aborted transactions when a partition is opened: trusted, completed or rebuilt.

After an unclean stop, entries below the place from which the producers are learnt again are
trusted: they were synced with their markers. All others are told by the log itself. A file that is
lost or damaged below that place is made anew from the whole log.

Knows segments and their files; which stop was unclean, and what was cut, is ``recovery``'s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidemill.log.aborted import AbortedIndex, AbortedTransaction, decode_aborted, encode_aborted
from tidemill.log.environment import Environment, Report
from tidemill.log.maintenance import replay_producers
from tidemill.log.names import TXN_INDEX
from tidemill.log.producers import ProducerStates
from tidemill.log.segment import Segment


def complete_indexes(
    env: Environment,
    segments: Sequence[Segment],
    told: Sequence[AbortedTransaction],
    told_from: int,
) -> None:
    """Bring the files of all segments to what they must hold, synced.

    Args:
        told: aborted transactions that the log has told of, in its order.
        told_from: offset from which it was asked; below, files are trusted.

    Raises:
        CorruptLogError, StorageError: the log can't be read again where a file is damaged.
        SyncFailedError: the broker must stop.
        OSError: the file system refuses.
    """
    damaged: list[Segment] = []
    for index, segment in enumerate(segments):
        end = segments[index + 1].base_offset if index + 1 < len(segments) else 1 << 63
        if segment.aborted is None and end <= told_from:
            continue
        stored = b"" if segment.aborted is None else env.fs.read_bytes(segment.path(TXN_INDEX))
        try:
            kept = _trusted(stored, segment.base_offset, end, told_from)
        except ValueError:
            damaged.append(segment)
            continue
        new = [entry for entry in told if segment.base_offset <= entry.last_offset < end]
        if end <= told_from and not new:
            continue  # all of it is synced
        _store(env, segment, stored, kept + new)
    if damaged:
        rebuild_indexes(env, segments, damaged)


def _trusted(stored: bytes, base: int, end: int, told_from: int) -> list[AbortedTransaction]:
    """The entries below ``told_from``.

    Raises:
        ValueError: the file lies wholly below it and is damaged.
    """
    if end <= told_from:
        entries = decode_aborted(stored)
        if entries and not (base <= entries[0].last_offset and entries[-1].last_offset < end):
            raise ValueError("its entries belong to another segment")
        return entries
    # What follows the trusted part may be torn.
    return [entry for entry in decode_aborted(stored, whole=False) if entry.last_offset < told_from]


def rebuild_indexes(
    env: Environment, segments: Sequence[Segment], damaged: Collection[Segment]
) -> None:
    """Make the indexes of some segments anew; reads the log from its start, and reports it.

    Raises:
        CorruptLogError, StorageError: the log can't be read.
        SyncFailedError: the broker must stop.
        OSError: the file system refuses.
    """
    states = ProducerStates()
    wanted = {id(segment) for segment in damaged}
    for segment in segments:
        entries = replay_producers(states, segment, env.clock.now_ms())
        if id(segment) in wanted:
            _store(env, segment, None, entries)
            env.reports.append(
                Report(
                    segment.partition(),
                    segment.path(TXN_INDEX),
                    "lost or damaged index of aborted transactions rebuilt",
                )
            )
        segment.file.close()


def _store(
    env: Environment, segment: Segment, stored: bytes | None, entries: list[AbortedTransaction]
) -> None:
    data, path = encode_aborted(entries), segment.path(TXN_INDEX)
    segment.aborted = AbortedIndex(len(data)) if data else None
    env.maps.drop(path)
    if not data:
        if env.fs.exists(path):
            env.fs.remove(path)
        return
    if data != stored:
        env.fs.write_bytes(path, data)
    try:  # one that is right was perhaps never synced
        env.fs.sync_file(path)
        env.fs.sync_dir(segment.folder)
    except OSError as error:
        raise env.pool.fail_sync(error, path) from error
