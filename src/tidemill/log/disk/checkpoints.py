"""The formats of the small files in a data folder: checkpoints, partition metadata, manifest.

Only encodes and decodes; ``store`` and ``recovery`` decide on the values. Metadata has Apache
Kafka's format. Checkpoints have its lines and version 1, and end with the file's name and a CRC: a
changed digit would otherwise move the start of a log, and so delete records. The manifest is
tidemill's own: it describes each partition at a clean stop, so that the next start does not read
the logs.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

import orjson

from tidemill.log.format.crc import crc32c
from tidemill.log.names import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
FIRST_DIRTY = "cleaner-offset-checkpoint"
ABORTED = "aborted-index-checkpoint"
MAX_OFFSET = (1 << 63) - 1
MANIFEST = "clean-stop.json"
_MANIFEST_VERSION = 2
_NOTE_VERSION = 1
_CHECKSUM = b"crc32c: "


class Checkpoint(NamedTuple):
    """The content of a checkpoint file.

    Attributes:
        is_checked: whether the file has a CRC. Files of earlier versions of tidemill have none,
            and their log starts can be older than the segments.
    """

    offsets: dict[TopicPartition, int]
    is_checked: bool


def encode_checkpoint(name: str, offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return a checkpoint file.

    It has the lines ``1``, the number of offsets, ``topic partition offset`` for each of them, and
    the file's name with the CRC-32C of everything before the CRC.

    Args:
        name: the name of the file. One file in the place of another is noticed by it.
    """
    return _encode(name, [f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def _encode(name: str, lines: list[str]) -> bytes:
    return seal(name, ["1", str(len(lines)), *lines])


def seal(name: str, lines: list[str]) -> bytes:
    """Return a file of lines, with a last one that has its name and a CRC."""
    body = "\n".join([*lines, f"{name} "]).encode()
    return body + b"%08x\n" % crc32c(body)


def unseal(name: str, data: bytes) -> list[str]:
    """Return the lines of such a file, but the last one.

    Raises:
        ValueError: the file is damaged, or another one.
    """
    body, crc = data[:-9], data[-9:]
    if not body.endswith(f"\n{name} ".encode()) or int(crc, 16) != crc32c(body):
        raise ValueError(f"wrong CRC, or not the file {name}")
    return body.decode().splitlines()[:-1]


class StoredIndex(NamedTuple):
    """Size and CRC of the synced part of a segment's index of aborted transactions."""

    base_offset: int
    size: int
    crc: int


StoredIndexes = Mapping[TopicPartition, Sequence[StoredIndex]]


def encode_stored_indexes(name: str, indexes: StoredIndexes) -> bytes:
    """Return a file like a checkpoint, with one line for each index."""
    rows = [
        f"{tp.topic} {tp.partition} {each.base_offset} {each.size} {each.crc}"
        for tp, found in indexes.items()
        for each in found
    ]
    return _encode(name, rows)


def decode_stored_indexes(name: str, data: bytes) -> dict[TopicPartition, list[StoredIndex]]:
    """Return the content of such a file.

    Raises:
        ValueError: the file is damaged or malformed.
    """
    lines, is_checked = _decode(name, data)
    if not is_checked:
        raise ValueError("not a file of version 1")
    found: dict[TopicPartition, list[StoredIndex]] = {}
    for line in lines:
        topic, partition, *numbers = line.split(" ")
        tp = TopicPartition(topic, int(partition))
        base, size, crc = map(int, numbers)
        found.setdefault(tp, []).append(StoredIndex(base, size, crc))
    return found


def decode_checkpoint(name: str, data: bytes) -> Checkpoint:
    """Return the content of a checkpoint file.

    Raises:
        ValueError: the file is damaged, malformed, or another checkpoint file.
    """
    lines, is_checked = _decode(name, data)
    offsets = {}
    for line in lines:
        topic, partition, text = line.split(" ")
        offset = int(text)
        if not -MAX_OFFSET <= offset <= MAX_OFFSET:
            raise ValueError(f"offset {text} has more than 63 bits")
        offsets[TopicPartition(topic, int(partition))] = offset
    return Checkpoint(offsets, is_checked)


def _decode(name: str, data: bytes) -> tuple[list[str], bool]:
    """Return the lines of a file, and whether it has a CRC."""
    lines = data.decode().splitlines()
    is_checked = bool(lines) and lines[0] == "1"
    if is_checked:
        lines = unseal(name, data)
    elif not lines or lines[0] != "0":
        raise ValueError("not a checkpoint file of version 0 or 1")
    if len(lines) < 2 or int(lines[1]) != len(lines) - 2:
        raise ValueError("the file is not complete")
    return lines[2:], is_checked


class TopicNote(NamedTuple):
    """The description of a topic in its partitions' folders, to rebuild a lost catalog from.

    Attributes:
        partitions: the number of partitions of the topic.
        configs: the topic's own configs.
        catalog_end: the end offset of the catalog's synced records when the note was written.
        producer_ids: all producer ids below it may be in use.
        cluster_id: the topic id of the catalog.
    """

    partitions: int
    configs: dict[str, str]
    catalog_end: int
    producer_ids: int
    cluster_id: UUID


def encode_metadata(topic_id: UUID, partition: int, note: TopicNote | None = None) -> bytes:
    """Return the content of ``partition.metadata``: the topic's id in Kafka's notation.

    The number of the partition and the note are in lines of their own, which Kafka and older
    versions of tidemill ignore.
    """
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    data = f"version: 0\ntopic_id: {text}\npartition: {partition}".encode()
    if note is not None:
        fields = {"v": _NOTE_VERSION, **note._asdict(), "cluster_id": note.cluster_id.hex}
        data += b"\ntopic: " + orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return data + b"\n" + _CHECKSUM + b"%08x\n" % crc32c(data)


def decode_metadata(data: bytes) -> UUID:
    """Return the topic's id from ``partition.metadata``.

    Raises:
        ValueError: the content is malformed, or differs from its checksum.
    """
    fields = _metadata_fields(data)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("not a partition.metadata file of version 0")
    try:
        return UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except binascii.Error as error:
        raise ValueError(f"invalid topic id {fields['topic_id']!r}: {error}") from error


def decode_partition(data: bytes) -> int | None:
    """Return the number of the partition; None if an older version wrote the file.

    Raises:
        ValueError: the content is malformed, or differs from its checksum.
    """
    text = _metadata_fields(data).get("partition")
    return None if text is None else int(text)


def decode_note(data: bytes) -> TopicNote | None:
    """Return the note in ``partition.metadata``; None if an older version wrote the file.

    Raises:
        ValueError: the note is malformed, of a newer version, or differs from its checksum.
    """
    text = _metadata_fields(data).get("topic")
    if text is None:
        return None
    fields = orjson.loads(text)
    try:
        if fields["v"] != _NOTE_VERSION:
            raise ValueError(f"a note of version {fields['v']} in partition.metadata")
        return TopicNote(
            int(fields["partitions"]),
            {str(key): str(value) for key, value in fields["configs"].items()},
            int(fields["catalog_end"]),
            int(fields["producer_ids"]),
            UUID(hex=fields["cluster_id"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"malformed note in partition.metadata: {error!r}") from error


def _metadata_fields(data: bytes) -> dict[str, str]:
    body, separator, checksum = data.partition(b"\n" + _CHECKSUM)
    if separator and checksum.strip() != b"%08x" % crc32c(body):
        raise ValueError("wrong checksum of partition.metadata")
    return dict(line.split(": ", 1) for line in body.decode().splitlines() if ": " in line)


class ManifestEntry(NamedTuple):
    """One partition at a clean stop."""

    tp: TopicPartition
    topic_id: UUID | None
    log_start_offset: int
    log_end_offset: int
    snapshot_offset: int
    """Offset of the producer snapshot; -1 if there are no producers."""
    segments: list[tuple[int, int, int, int, int]]
    """(base offset, size, max timestamp, creation time in ms, size of the index of aborted
    transactions) of each segment, oldest first."""
    has_open_transactions: bool = False


def encode_manifest(entries: Iterable[ManifestEntry]) -> bytes:
    """Return a manifest. Its first line is the CRC of the second."""
    rows = [
        (*tp, None if topic_id is None else topic_id.hex, *rest) for tp, topic_id, *rest in entries
    ]
    body = orjson.dumps({"version": _MANIFEST_VERSION, "partitions": rows})
    return b"%08x\n" % crc32c(body) + body


def decode_manifest(data: bytes) -> dict[TopicPartition, ManifestEntry]:
    """Return the entries of a manifest.

    Raises:
        ValueError: the manifest is damaged or of another version.
    """
    head, _, body = data.partition(b"\n")
    if int(head, 16) != crc32c(body):
        raise ValueError("wrong CRC of the manifest")
    document = orjson.loads(body)
    if document["version"] != _MANIFEST_VERSION:
        raise ValueError(f"unknown manifest version {document['version']}")
    entries = {}
    for topic, partition, topic_id, *rest in document["partitions"]:
        tp = TopicPartition(topic, partition)
        uuid = None if topic_id is None else UUID(hex=topic_id)
        entries[tp] = ManifestEntry(tp, uuid, *rest)
    return entries
