"""Copies a data folder whose broker can be running, so that each partition is consistent.

A closed segment never changes, so it becomes a hard link where the file system can, or is copied
once. The active segment is copied up to its last whole batch. A partition in the backup is what a
crash at the time of its copy would have left, and it is in the page cache already when the broker
acknowledges it. Logs that others refer to are copied later than those: committed offsets before
topics, and the catalog at the end. The copy has no journal, so it has the format without one: a
start verifies each batch. Must not know: an engine, a protocol.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidemill import __version__
from tidemill.cli.backup.contents import FILE, BackupError, Contents, CopiedPartition
from tidemill.log.disk.checkpoints import (
    ABORTED,
    FIRST_DIRTY,
    LOG_STARTS,
    RECOVERY_POINTS,
    decode_checkpoint,
    encode_checkpoint,
    encode_stored_indexes,
)
from tidemill.log.disk.files import RealFileSystem
from tidemill.log.disk.log_file import HandlePool, LogFile
from tidemill.log.disk.scan import BatchScanner
from tidemill.log.names import (
    INDEX,
    LOG,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    folder_name,
    parse_file_name,
    parse_folder_name,
)
from tidemill.log.partition.sync import METADATA
from tidemill.log.versions import FORMAT_FILE, known_version
from tidemill.state.internal_topics import (
    CATALOG_TOPIC,
    OFFSETS_TOPIC,
    QUEUE_STATE_TOPIC,
    QUEUES_TOPIC,
    SECURITY_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
)

WITHOUT_JOURNAL = "1\n"
"""The format of a folder without a journal; the first start makes it the present one."""
ATTEMPTS = 10
"""How often a partition is tried again whose segments retention or compaction has changed."""
_FIRST = (OFFSETS_TOPIC, SHARE_STATE_TOPIC, QUEUE_STATE_TOPIC)
_LAST = (TRANSACTIONS_TOPIC, QUEUES_TOPIC, SECURITY_TOPIC, CATALOG_TOPIC)
_PAUSE_S = 0.1

Progress = Callable[[str], None]


class _ChangedError(Exception):
    """Segments of a partition were deleted or compacted while they were copied."""


class _NoSegmentError(Exception):
    """A partition has no segment. Every partition has one, but while it is created or deleted."""


@dataclass(slots=True)
class _Copy:
    """One backup in the making.

    Attributes:
        before: the backup before, whose unchanged segments are used again; None if there is none.
    """

    source: Path
    target: Path
    before: Path | None
    partitions: dict[TopicPartition, CopiedPartition] = field(default_factory=dict)
    linked: int = 0
    reused: int = 0


def back_up(source: Path, target: Path, progress: Progress = lambda _: None) -> Contents:
    """Copy a data folder into a new folder, or replace a backup; return what is in it.

    Args:
        target: the folder. If it is a backup, unchanged segments of it are used again, and it stays
            as it is until the new one is complete.

    Raises:
        BackupError: the source is not a data folder, the target is something else, or another
            backup to it is under way.
        OSError: a file can't be read or written.
    """
    _check_source(source)
    before = _check_target(source, target)
    began_ms = time.time_ns() // 1_000_000
    made = _beside(target, "new")
    with _folder(made, target):
        copy = _Copy(source, made, before)
        _copy_partitions(copy, progress)
        _write_checkpoints(copy)
        (made / FORMAT_FILE).write_text(WITHOUT_JOURNAL)
        contents = Contents(
            began_ms,
            time.time_ns() // 1_000_000,
            __version__,
            copy.linked,
            copy.reused,
            {str(tp): each for tp, each in sorted(copy.partitions.items())},
        )
        (made / FILE).write_text(contents.encode())
        _make_durable(made)
        _put_in_place(made, target, before)
    return contents


@contextlib.contextmanager
def _folder(made: Path, target: Path) -> Iterator[None]:
    """Make the folder of a backup, for this process alone."""
    if made.exists():
        with _locked(made, target):
            shutil.rmtree(made)  # of a backup that was interrupted
    made.mkdir(parents=True, mode=0o700)  # the passwords of users are in it, as SCRAM stores them
    with _locked(made, target):
        yield


@contextlib.contextmanager
def _locked(made: Path, target: Path) -> Iterator[None]:
    handle = os.open(made, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system of a network that has no locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(f"another backup to {target} is under way") from None
        yield
    finally:
        os.close(handle)


def _check_source(source: Path) -> None:
    try:
        text = (source / FORMAT_FILE).read_text(errors="replace").strip()
    except OSError:
        raise BackupError(
            f"{source} is not a data folder: it has no {FORMAT_FILE}",
            hint="Name it with --data-dir, or the settings file with --config.",
        ) from None
    if known_version(text) is None:
        raise BackupError(f"{source} has format version {text!r}, which this tidemill can't read")


def _check_target(source: Path, target: Path) -> Path | None:
    """Return the backup that is at the target; None if nothing is there."""
    old = _beside(target, "old")
    if old.exists() and not os.path.lexists(target):
        old.rename(target)  # a backup was interrupted while it replaced this one
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise BackupError(f"{target} is in the data folder", hint="Use a folder elsewhere.")
    if not os.path.lexists(target):
        return None
    if not (target / FILE).is_file():
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
            return None
        raise BackupError(
            f"{target} exists, and is not a backup", hint="Use a new folder, or an earlier backup."
        )
    return target


def _copy_partitions(copy: _Copy, progress: Progress) -> None:
    """Copy all partitions, and those of topics that are created meanwhile."""
    while True:
        found = _folders(copy.source)
        for tp in [tp for tp in copy.partitions if tp not in found]:
            del copy.partitions[tp]  # its topic was deleted
            shutil.rmtree(copy.target / folder_name(tp))
        for tp in found:
            if tp not in copy.partitions and tp.topic not in _LAST:
                progress(str(tp))
                _copy_partition(copy, tp)
        for tp in found:
            if tp.topic in _LAST:
                progress(str(tp))
                shutil.rmtree(copy.target / folder_name(tp), ignore_errors=True)
                _copy_partition(copy, tp)
        if set(_folders(copy.source)) == set(found):
            return


def _folders(source: Path) -> list[TopicPartition]:
    """Return the partitions of a data folder, in the order in which they are copied."""
    order = {name: number for number, name in enumerate((*_FIRST, "", *_LAST))}
    named = (parse_folder_name(path.name) for path in source.iterdir() if path.is_dir())
    found = [tp for tp in named if tp is not None]
    return sorted(found, key=lambda tp: (order.get(tp.topic, order[""]), tp))


def _copy_partition(copy: _Copy, tp: TopicPartition) -> None:
    for attempt in range(ATTEMPTS):
        try:
            copy.partitions[tp] = _try_partition(copy, tp)
        except (_ChangedError, _NoSegmentError, FileNotFoundError) as error:
            shutil.rmtree(copy.target / folder_name(tp), ignore_errors=True)
            if not (copy.source / folder_name(tp)).exists():
                return  # its topic was deleted
            if isinstance(error, _NoSegmentError):  # its topic is being created or deleted
                if attempt == ATTEMPTS - 1:
                    raise BackupError(str(error)) from None
                time.sleep(_PAUSE_S)
        else:
            return
    raise BackupError(
        f"the segments of {tp} change faster than they can be copied",
        hint="Try again, or stop the broker meanwhile.",
    )


def _try_partition(copy: _Copy, tp: TopicPartition) -> CopiedPartition:
    folder, made = copy.source / folder_name(tp), copy.target / folder_name(tp)
    bases = _bases(folder)
    made.mkdir()
    if (folder / METADATA).exists():
        shutil.copyfile(folder / METADATA, made / METADATA)
    if not bases:
        raise _NoSegmentError(f"{folder} has no segment: partition {tp} is damaged")
    size = 0
    for base in bases[:-1]:
        size += _take_closed(copy, tp, _name(base, LOG))
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
            if (folder / _name(base, suffix)).exists():
                shutil.copyfile(folder / _name(base, suffix), made / _name(base, suffix))
    name = _name(bases[-1], LOG)
    last, end = _copy_active(folder / name, made / name, bases[-1])
    now = _bases(folder)
    if now[: len(bases)] != bases:
        raise _ChangedError
    return CopiedPartition(bases[0], end, size + last)


def _bases(folder: Path) -> list[int]:
    """Return the base offsets of the segments of a partition."""
    parsed = (parse_file_name(path.name) for path in folder.iterdir())
    return sorted(each[0] for each in parsed if each is not None and each[1] == LOG)


def _name(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def _take_closed(copy: _Copy, tp: TopicPartition, name: str) -> int:
    """Link or copy a closed segment; return its size."""
    source = copy.source / folder_name(tp) / name
    made = copy.target / folder_name(tp) / name
    about = source.stat()
    if _is_linked(source, made):
        copy.linked += about.st_size
        return about.st_size
    before = None if copy.before is None else copy.before / folder_name(tp) / name
    if before is not None and before.is_file():
        known = before.stat()
        is_same = (known.st_size, known.st_mtime_ns) == (about.st_size, about.st_mtime_ns)
        if is_same and _is_linked(before, made):
            copy.reused += about.st_size
            return about.st_size
    shutil.copyfile(source, made)
    os.utime(made, ns=(about.st_atime_ns, about.st_mtime_ns))
    if made.stat().st_size != about.st_size:
        raise _ChangedError
    return about.st_size


def _is_linked(source: Path, made: Path) -> bool:
    """Make a hard link; return False if these file systems can't have one."""
    try:
        os.link(source, made)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _copy_active(source: Path, made: Path, base: int) -> tuple[int, int]:
    """Copy a segment up to its last whole batch; return its size, and the offset behind that.

    What follows is being written, or is damaged: ``doctor --verify`` says where.
    """
    shutil.copyfile(source, made)
    file = LogFile(HandlePool(RealFileSystem(), 1), str(made), made.stat().st_size)
    scanner = BatchScanner(file, 0, file.size, base)
    deque(scanner, maxlen=0)
    file.close()
    os.truncate(made, scanner.position)
    return scanner.position, scanner.next_offset


def _write_checkpoints(copy: _Copy) -> None:
    """Write where each log begins, and which logs compaction has perhaps removed batches from.

    Both are read after the logs were copied, because the broker stores them before it deletes. A
    log can begin inside of its first segment. The first start reads all logs from their start.
    """
    stored = _stored(copy.source, LOG_STARTS)
    starts = {}
    for tp, each in copy.partitions.items():
        start = min(max(stored.get(tp, 0), each.start), each.end)
        copy.partitions[tp] = CopiedPartition(start, each.end, each.size)
        if start:
            starts[tp] = start
    sparse = dict.fromkeys(_stored(copy.source, FIRST_DIRTY), 0)
    (copy.target / LOG_STARTS).write_bytes(encode_checkpoint(LOG_STARTS, starts))
    (copy.target / FIRST_DIRTY).write_bytes(encode_checkpoint(FIRST_DIRTY, sparse))
    (copy.target / RECOVERY_POINTS).write_bytes(encode_checkpoint(RECOVERY_POINTS, {}))
    (copy.target / ABORTED).write_bytes(encode_stored_indexes(ABORTED, {}))


def _stored(source: Path, name: str) -> dict[TopicPartition, int]:
    """Return the offsets of a checkpoint; none if there is none.

    Raises:
        BackupError: it is damaged.
    """
    try:
        found = decode_checkpoint(name, (source / name).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BackupError(f"{source / name} is damaged: {error}") from error
    return {tp: max(offset, ~offset) for tp, offset in found.offsets.items()}


def _put_in_place(made: Path, target: Path, before: Path | None) -> None:
    """Give the new backup its name. At each moment, one of both is there and complete."""
    if before is None:
        made.rename(target)
    else:
        old = _beside(target, "old")
        if old.exists():
            shutil.rmtree(old)
        target.rename(old)
        made.rename(target)
        shutil.rmtree(old)
    RealFileSystem().sync_dir(str(target.parent))


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f".{target.name}.{what}")


def _make_durable(made: Path) -> None:
    """Sync the backup, with one call for all of its files where the system can."""
    if not RealFileSystem().sync_all(str(made)):
        os.sync()
