"""Finish or drop file operations that a crash has interrupted in a partition's folder.

Files that compaction has replaced and temporary files are removed. ``recovery`` deletes the files
of segments that retention has removed (``.deleted``), because they show how the log's start moved.
A compaction's swap is finished if its ``.log.swap`` file is there, and dropped otherwise:
``compaction.swap`` describes the protocol.
"""

from __future__ import annotations

from tidemill.log.disk.environment import Environment
from tidemill.log.disk.files import storage_errors
from tidemill.log.disk.log_file import LogFile
from tidemill.log.disk.scan import BatchScanner
from tidemill.log.errors import CorruptLogError
from tidemill.log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    REPLACED,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TopicPartition,
    file_name,
    parse_file_name,
)
from tidemill.log.partition.sync import METADATA

TEMPORARY = ".tmp"


def finish_file_operations(env: Environment, tp: TopicPartition, folder: str) -> dict[str, int]:
    """Finish or drop what a crash has interrupted; return the folder's files with their sizes."""
    names = env.fs.files(folder)
    if all(name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT, METADATA, DELETED)) for name in names):
        return names
    if any(name.endswith((CLEANED, SWAP)) for name in names):
        _finish_swaps(env, tp, folder, names)
    for name in names:
        if name.endswith((REPLACED, TEMPORARY)):
            env.fs.remove(f"{folder}/{name}")
    env.fs.sync_dir(folder)
    return env.fs.files(folder)


def _finish_swaps(env: Environment, tp: TopicPartition, folder: str, names: dict[str, int]) -> None:
    """Drop swaps that were not committed, and finish the others. What was done is reported.

    Raises:
        CorruptLogError: a ``.swap`` file is damaged. No file was removed for it.
        SyncFailedError, StorageError: a file operation failed.
    """
    fs = env.fs
    with storage_errors("finishing a compaction in", folder):
        for name in names:
            if name.endswith(CLEANED):
                fs.remove(f"{folder}/{name}")
                env.report(tp, folder, f"unfinished {name} dropped")
        for name in sorted(names):
            parsed = parse_file_name(name)
            if parsed is not None and parsed[1] == LOG + SWAP:
                _finish_swap(env, folder, parsed[0], names)
                env.report(tp, folder, f"swap of {name[: -len(SWAP)]} finished")
        for name in names:
            # A crash in step 4, or in step 2 if there is no .log.swap, leaves such a file. It is
            # uncertain which of the two indexes belongs to the log, so both are removed and built
            # again.
            if name[20:] in (INDEX + SWAP, TIME_INDEX + SWAP):
                stem = name[:20]
                for each in (stem + INDEX, stem + TIME_INDEX, name):
                    if fs.exists(f"{folder}/{each}"):
                        fs.remove(f"{folder}/{each}")
                env.report(tp, folder, f"{name} dropped")
    env.pool.sync_folder(folder)


def _finish_swap(env: Environment, folder: str, base: int, names: dict[str, int]) -> None:
    path = f"{folder}/{file_name(base, LOG)}"
    end = _end_offset(env, path + SWAP, base, names[file_name(base, LOG + SWAP)])
    if file_name(end, LOG) not in names:  # the active segment is never compacted
        raise CorruptLogError(
            f"{path}{SWAP} ends at offset {end - 1}, but no segment begins at {end}",
            path=path + SWAP,
            position=names[file_name(base, LOG + SWAP)],
            offset=end,
        )
    for name in names:
        parsed = parse_file_name(name)
        if parsed is not None and parsed[1] in SEGMENT_SUFFIXES and base <= parsed[0] < end:
            env.fs.remove(f"{folder}/{name}")
    env.pool.sync_folder(folder)
    env.fs.rename(path + SWAP, path)


def _end_offset(env: Environment, path: str, base: int, size: int) -> int:
    """Return the end offset of a cleaned segment, which is scanned completely."""
    file = LogFile(env.pool, path, size)
    scanner = BatchScanner(file, 0, size, base)
    for _ in scanner:
        pass
    file.close()
    if scanner.damage is not None or not size:
        raise CorruptLogError(
            f"{path} is damaged at byte {scanner.position}: {scanner.damage or 'it is empty'}",
            path=path,
            position=scanner.position,
            offset=scanner.next_offset,
            hint="The segments that it was made from may still be there, some as .replaced files.",
        )
    return scanner.next_offset
