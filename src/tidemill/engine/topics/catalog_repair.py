"""Rebuild the catalog of a stopped broker's data folder.

``plan`` reads the folder and changes nothing. ``apply`` sets the old catalog's folder aside, which
is never deleted, and writes a new one. A crash at any point leaves a folder that the broker refuses
or starts with, and a second repair completes the first one. The caller holds the folder's lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from tidemill.engine.internal_topics import CATALOG, JOURNAL_CONFIGS
from tidemill.engine.topics.folder_metadata import FolderMetadata, read_metadata, write_metadata
from tidemill.engine.topics.salvage import salvage
from tidemill.log.disk.checkpoints import (
    MANIFEST,
    RECOVERY_POINTS,
    TopicNote,
    decode_checkpoint,
    encode_metadata,
)
from tidemill.log.disk.files import FileSystem, storage_error
from tidemill.log.errors import StorageError
from tidemill.log.format.batch import empty_batch
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.journal.reading import disown
from tidemill.log.names import (
    LOG,
    SNAPSHOT,
    TopicPartition,
    file_name,
    folder_name,
    parse_folder_name,
)
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.sync import METADATA
from tidemill.log.store import STRAY_SUFFIX
from tidemill.state.catalog.rebuild import FoundFolder, RebuiltCatalog, rebuild

NEW_SUFFIX = "-new"
RECORDS_PER_BATCH = 1000
LARGEST_FILLER = 1 << 30
LARGEST_END = 1 << 31
"""A higher end offset of a catalog comes from a damaged checkpoint."""


@dataclass
class CatalogPlan:
    """The effect of a repair of the catalog.

    Attributes:
        data_dir: the data folder.
        catalog: the catalog as it will be.
        folders: the partitions' folders.
        found: whether there is a folder of the old catalog.
        damage: the damaged places in it.
        end: the end offset of the old catalog as far as it is known. New records come behind it.
        cluster_id: the topic id of the catalog; None if a new one is made.
        is_whole: whether the old catalog has no damage and contradicts no folder.
    """

    data_dir: str
    catalog: RebuiltCatalog
    folders: list[FoundFolder]
    found: bool
    damage: list[str]
    end: int
    cluster_id: UUID | None
    is_whole: bool


def plan(fs: FileSystem, data_dir: str) -> CatalogPlan:
    """Return what a repair would do.

    Raises:
        StorageError: a file can't be read.
    """
    path = f"{data_dir}/{folder_name(CATALOG)}"
    try:
        folders = list(_folders(fs, data_dir))
        old = salvage(fs, path)
        metadata = read_metadata(fs, path)
        points = _recovery_points(fs, data_dir)
        used = {each for folder in folders for each in _producer_ids(fs, data_dir, folder.tp)}
        found = fs.exists(path)
    except OSError as error:
        raise storage_error(error, "reading", data_dir) from error
    notes = [each.note for each in folders if each.note is not None]
    newest = max(notes, key=lambda note: note.catalog_end, default=None)
    cluster_id = metadata.topic_id or (None if newest is None else newest.cluster_id)
    ends = [old.end, points.get(CATALOG, 0), *(note.catalog_end for note in notes)]
    end = max(each for each in [0, *ends] if each < LARGEST_END)
    catalog = rebuild(
        old.latest,
        folders,
        cluster_id=cluster_id,
        used_producer_ids=used,
        internal_configs=JOURNAL_CONFIGS,
    )
    is_whole = (
        found
        and old.end == end
        and not (old.damage or catalog.unreadable or catalog.aside)
        and all(each.source == "catalog" for each in catalog.topics)
    )
    return CatalogPlan(data_dir, catalog, folders, found, old.damage, end, cluster_id, is_whole)


def _folders(fs: FileSystem, data_dir: str) -> Iterator[FoundFolder]:
    for name in sorted(fs.folders(data_dir)):
        tp = parse_folder_name(name)
        if tp is None or folder_name(tp) != name or tp == CATALOG:
            continue
        found: FolderMetadata = read_metadata(fs, f"{data_dir}/{name}")
        logs = {n: size for n, size in fs.files(f"{data_dir}/{name}").items() if n.endswith(LOG)}
        has_records = any(logs.values()) or any(n != file_name(0, LOG) for n in logs)
        yield FoundFolder(tp, found.topic_id, found.note, has_records)


def _recovery_points(fs: FileSystem, data_dir: str) -> dict[TopicPartition, int]:
    try:
        data = fs.read_bytes(f"{data_dir}/{RECOVERY_POINTS}")
        return decode_checkpoint(RECOVERY_POINTS, data).offsets
    except (FileNotFoundError, ValueError):
        return {}


def _producer_ids(fs: FileSystem, data_dir: str, tp: TopicPartition) -> Iterator[int]:
    folder = f"{data_dir}/{folder_name(tp)}"
    for name in fs.files(folder):
        if name.endswith(SNAPSHOT):
            try:
                states = ProducerStates.decode(fs.read_bytes(f"{folder}/{name}"))
            except ValueError:
                continue
            yield from (each.producer_id for each in states)


# --- writing -------------------------------------------------------------------------------------


def apply(fs: FileSystem, todo: CatalogPlan, now_ms: int) -> list[str]:
    """Rebuild the catalog; return the paths of the folders that were set aside.

    Raises:
        DiskFullError, StorageError: a file operation failed. The repair can be started again.
    """
    try:
        return _apply(fs, todo, now_ms)
    except OSError as error:
        raise storage_error(error, "repairing the catalog in", todo.data_dir) from error


def _apply(fs: FileSystem, todo: CatalogPlan, now_ms: int) -> list[str]:
    data_dir, mark = todo.data_dir, uuid.uuid4().hex
    cluster_id = todo.cluster_id or uuid.uuid4()
    if fs.exists(f"{data_dir}/{MANIFEST}"):
        fs.remove(f"{data_dir}/{MANIFEST}")  # it describes the folders as they were
        fs.sync_dir(data_dir)
    disown(fs, data_dir, CATALOG)
    for name in fs.folders(data_dir):  # of a repair that a crash interrupted
        if name.startswith(f"{folder_name(CATALOG)}.") and name.endswith(NEW_SUFFIX):
            fs.remove_tree(f"{data_dir}/{name}")
    data = _log(todo, now_ms)
    end = todo.end + len(todo.catalog.records())
    new = f"{data_dir}/{folder_name(CATALOG)}.{mark}{NEW_SUFFIX}"
    fs.mkdir(new)
    for name, content in ((METADATA, encode_metadata(cluster_id, 0)), (file_name(0, LOG), data)):
        fs.write_atomic(f"{new}/{name}", content)
    _write_notes(fs, todo, TopicNote(0, {}, end, todo.catalog.next_producer_id, cluster_id))
    aside = [folder_name(folder.tp) for folder, _ in todo.catalog.aside]
    if todo.found:
        aside.append(folder_name(CATALOG))
    moved = []
    for name in aside:
        moved.append(f"{data_dir}/{name[:200]}.{mark}{STRAY_SUFFIX}")
        fs.rename(f"{data_dir}/{name}", moved[-1])
    fs.rename(new, f"{data_dir}/{folder_name(CATALOG)}")
    fs.sync_dir(data_dir)
    return moved


def _write_notes(fs: FileSystem, todo: CatalogPlan, base: TopicNote) -> None:
    """Give a folder of each topic a note that fits the new catalog."""
    for each in todo.catalog.topics:
        topic = each.topic
        own = [
            folder
            for folder in todo.folders
            if folder.tp.topic == topic.name and folder.topic_id in (None, topic.topic_id)
        ]
        if not own:
            continue
        first = min(own, key=lambda folder: folder.tp.partition)
        note = base._replace(partitions=topic.partitions, configs=dict(topic.configs))
        path = f"{todo.data_dir}/{folder_name(first.tp)}"
        write_metadata(fs, path, topic.topic_id, first.tp.partition, note)


def _log(todo: CatalogPlan, now_ms: int) -> bytes:
    """Return the new log. Empty batches take the offsets of the old catalog, as in compaction."""
    data = bytearray()
    offset = 0
    while offset < todo.end:
        count = min(todo.end - offset, LARGEST_FILLER)
        data += empty_batch(offset, count)
        offset += count
    records = todo.catalog.records()
    for start in range(0, len(records), RECORDS_PER_BATCH):
        part = records[start : start + RECORDS_PER_BATCH]
        data += encode_batch(
            [NewRecord(each.key, each.value) for each in part],
            timestamp_ms=now_ms,
            base_offset=todo.end + start,
        )
    return bytes(data)


def check_folder(fs: FileSystem, data_dir: str) -> None:
    """Check that the folder has topics.

    Raises:
        StorageError: there is nothing to rebuild a catalog from.
    """
    if not any(True for _ in _folders(fs, data_dir)):
        raise StorageError(f"{data_dir} has no folders of partitions to rebuild the catalog from")
