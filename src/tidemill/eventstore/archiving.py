"""Archives the beginning of a store's log, so that its space comes back.

An archive is a folder. *Records* files have what was in the log, byte for byte. A *checkpoint* is
the index up to the last archived record: with it a machine begins without them. The
log is cut only when both are on disk and were read back. Positions and versions never change. Must
not know: what commits mean.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition

from tidemill.confluent.clients import REQUEST_S, Kafka
from tidemill.eventstore.errors import ArchiveError, IndexUnusableError
from tidemill.eventstore.index import About, IndexFile
from tidemill.eventstore.index_files import index_path, make_private, remove
from tidemill.eventstore.log import Log, Record
from tidemill.eventstore.state import Head
from tidemill.eventstore.store import Store
from tidemill.system import sync_folder

_CLIENT = "tidemill-archive"
_MAGIC = b"TMA1"
_RECORD = struct.Struct(">QQI")
"""Offset, time in ms, and length of the value that follows."""
_END = (1 << 64) - 1
"""The offset in front of the digest, which is the last thing in a file."""
_RECORDS = "records-*.tma"
_CHECKPOINTS = "checkpoint-*.sqlite"


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of archiving.

    Attributes:
        head: the point up to which the log is archived. The record there stays in the log.
        records: the file with the records; None if there were none to archive.
        checkpoint: the index up to ``head``.
        count: the number of records that left the log.
    """

    head: Head
    records: Path | None
    checkpoint: Path
    count: int


def archive(
    kafka: Kafka | str, topic: str, folder: Path | str, *, index_folder: Path | str | None = None
) -> Archived:
    """Move what is in a store's log now to files, but for its last record.

    Other machines that have not folded so far need the checkpoint: see ``begin_at``. If it fails at
    any point, nothing was deleted, and it can be called again.

    Args:
        folder: the archive, for one store. It is created; earlier archives are in it, too. Only
            this user can read its files, which have what the events have.
        index_folder: the folder of the index, as for ``Store``.

    Raises:
        ArchiveError: the files can't be written, or differ when they are read back; or the folder
            is the archive of another store.
        IndexMismatchError, UnsuitableTopicError: as for ``Store``.
        UnreachableError: no broker answers.
    """
    kafka = Kafka(kafka) if isinstance(kafka, str) else kafka
    folder = Path(folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Store(kafka, topic, create=False, folder=index_folder) as store:
            store.wait_indexed()
            about = About(store.identity.cluster, topic, store.identity.topic_id)
            _check_owner(folder, about)
            head, checkpoint = _checkpoint(index_path(about.cluster, topic, index_folder), folder)
        with contextlib.closing(Log(kafka, topic)) as log:
            first = kafka.start_offsets(_CLIENT, [(topic, 0)])[topic, 0]
            if first >= head.offset:
                return Archived(head, None, checkpoint, 0)
            records = folder / f"records-{first:020}.tma"
            count = _write(records, log.scan(first), head.offset)
        if sum(1 for _ in read(records)) != count:
            raise ArchiveError(f"{records} has other records than were written")
        sync_folder(folder)
    except OSError as error:
        raise ArchiveError(f"the archive in {folder} can't be written: {error}") from error
    _delete(kafka, topic, head.offset)
    return Archived(head, records, checkpoint, count)


def begin_at(
    kafka: Kafka | str, topic: str, checkpoint: Path | str, *, folder: Path | str | None = None
) -> Head:
    """Make a checkpoint the index of this machine, in place of the present one.

    Args:
        checkpoint: the file that ``archive`` has written.
        folder: the folder of the index, as for ``Store``.

    Returns:
        The point up to which the log was folded then.

    Raises:
        IndexMismatchError: the checkpoint belongs to another store.
        IndexUnusableError: another process uses the index, or the file is not a checkpoint.
    """
    kafka = Kafka(kafka) if isinstance(kafka, str) else kafka
    with contextlib.closing(Log(kafka, topic)) as log:
        identity = log.prepare(create=False)
    path = index_path(identity.cluster, topic, folder)
    about = About(identity.cluster, topic, identity.topic_id)
    copy = path.with_name(f"{path.name}.new")
    try:
        _owner(Path(checkpoint))  # an empty file would become an empty index
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _discard(copy)
        make_private(copy)
        shutil.copyfile(checkpoint, copy)
        with contextlib.closing(IndexFile(copy, about)):
            pass
        remove(path, by=copy)
    except OSError as error:
        raise ArchiveError(f"{checkpoint} can't become the index {path}: {error}") from error
    finally:
        _discard(copy)
    with Store(kafka, topic, create=False, folder=folder) as store:
        return store.head()


def _owner(checkpoint: Path) -> About:
    """Return the log that a checkpoint belongs to.

    Raises:
        IndexUnusableError: the file is not a checkpoint.
    """
    try:
        there = f"{checkpoint.resolve(strict=True).as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(there, uri=True)) as connection:
            (found,) = connection.execute("SELECT cluster, topic, topic_id FROM about")
    except (sqlite3.Error, ValueError) as error:
        raise IndexUnusableError(f"{checkpoint} is not a checkpoint: {error}") from error
    return About(*found)


def _check_owner(folder: Path, about: About) -> None:
    """Check that an archive has nothing of another store: its files would be replaced.

    Raises:
        ArchiveError: it has.
    """
    for path in folder.glob(_CHECKPOINTS):
        found = _owner(path)
        if found != about:
            raise ArchiveError(
                f"{folder} is the archive of store {found.topic!r} with the id {found.topic_id} of "
                f"cluster {found.cluster}, and not of {about.topic!r} with the id {about.topic_id}",
                hint="Give each store a folder of its own.",
            )


def _discard(copy: Path) -> None:
    """Delete what an attempt has left behind."""
    for suffix in ("", "-wal", "-shm", ".users", ".lock"):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)


def archived(folder: Path | str) -> Iterator[Record]:
    """Yield all records of an archive, in the order of the log.

    Raises:
        ArchiveError: there is no archive, a file is damaged, or records between two files are
            missing.
    """
    if not any(each for kind in (_RECORDS, _CHECKPOINTS) for each in Path(folder).glob(kind)):
        raise ArchiveError(f"there is no archive in {folder}")
    following = None
    for path in sorted(Path(folder).glob(_RECORDS)):
        first = int(path.stem.removeprefix("records-"))
        if following is not None and first > following:
            raise ArchiveError(f"the archive lacks records between {following} and {path}")
        for record in read(path):
            if following is None or record.offset >= following:
                yield record
                following = record.offset + 1


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file.

    Raises:
        ArchiveError: it is damaged or cut.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ArchiveError(f"{path} is not a file of an archive")
        while True:
            start = file.read(_RECORD.size)
            if len(start) < _RECORD.size:
                raise ArchiveError(f"{path} ends in the middle")
            offset, time_ms, length = _RECORD.unpack(start)
            value = file.read(length)
            if len(value) < length:
                raise ArchiveError(f"{path} ends in the middle of the record at offset {offset}")
            if offset == _END:
                if value != digest.digest() or time_ms or file.read(1):
                    raise ArchiveError(f"{path} is damaged: its digest is another one")
                return
            digest.update(start)
            digest.update(value)
            yield Record(offset, value, time_ms)


def _write(path: Path, records: Iterator[Record], end: int) -> int:
    """Write the records below an offset to a file, and return how many there are."""
    digest, count = hashlib.sha256(), 0
    unfinished = path.with_name(f"{path.name}.new")
    _discard(unfinished)
    make_private(unfinished)
    with unfinished.open("wb") as file:
        file.write(_MAGIC)
        for record in records:
            if record.offset >= end:
                break
            start = _RECORD.pack(record.offset, max(0, record.time_ms), len(record.value))
            file.write(start + record.value)
            digest.update(start)
            digest.update(record.value)
            count += 1
        found = digest.digest()
        file.write(_RECORD.pack(_END, 0, len(found)) + found)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return count


def _checkpoint(index: Path, folder: Path) -> tuple[Head, Path]:
    """Copy an index into an archive, and return up to where it goes."""
    unfinished = folder / "checkpoint.new"
    _discard(unfinished)
    make_private(unfinished)
    try:
        with contextlib.closing(sqlite3.connect(index, isolation_level=None)) as connection:
            connection.execute("VACUUM INTO ?", (str(unfinished),))
        with contextlib.closing(sqlite3.connect(unfinished)) as connection:
            row = connection.execute("SELECT position, hash, read, fold FROM about").fetchone()
            (sound,) = connection.execute("PRAGMA quick_check").fetchone()
        if sound != "ok":
            raise ArchiveError(f"the checkpoint {unfinished} is damaged: {sound}")
    except sqlite3.Error as error:
        raise ArchiveError(f"the index {index} can't be copied to {folder}: {error}") from error
    head = Head(*row)
    path = folder / f"checkpoint-{head.offset:020}.sqlite"
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    return head, path


def _delete(kafka: Kafka, topic: str, offset: int) -> None:
    admin = kafka.admin(_CLIENT)  # a client that is collected gets no answers
    asked = [TopicPartition(topic, 0, offset)]
    for future in admin.delete_records(asked, request_timeout=REQUEST_S).values():
        # Raised, it would keep the client: see _answers in confluent/clients.py.
        error = future.exception(2 * REQUEST_S)
        if isinstance(error, KafkaException):
            raise kafka.translate(error.args[0], f"delete records of topic {topic}") from error
        future.result()
