"""The small files of a data folder: offset checkpoints, partition metadata, the manifest.

Formats only; which values stand in them is decided in ``store`` and ``recovery``. Checkpoints and
metadata are in Apache Kafka's format. The manifest is tidemill's own: what each partition held when
the store was closed, so that the next start need not look.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

import orjson
from crc32c import crc32c

from tidemill.log.names import TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
FIRST_DIRTY = "cleaner-offset-checkpoint"
MANIFEST = "clean-stop.json"
_MANIFEST_VERSION = 2


def encode_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """``0``, the number of lines, then ``topic partition offset`` on each that is above 0."""
    lines = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items() if offset]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def decode_checkpoint(data: bytes) -> dict[TopicPartition, int]:
    """The offsets of a checkpoint file.

    Raises:
        ValueError: it is not well-formed.
    """
    lines = data.decode().splitlines()
    if len(lines) < 2 or lines[0] != "0" or int(lines[1]) != len(lines) - 2:
        raise ValueError("not a checkpoint file of version 0, or cut")
    offsets = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


def encode_metadata(topic_id: UUID) -> bytes:
    """``partition.metadata``: the topic's id as Kafka writes ids."""
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    return f"version: 0\ntopic_id: {text}".encode()


def decode_metadata(data: bytes) -> UUID:
    """The topic's id.

    Raises:
        ValueError: it is not well-formed.
    """
    fields = dict(line.split(": ", 1) for line in data.decode().splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("not a partition.metadata file of version 0")
    try:
        return UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except binascii.Error as error:
        raise ValueError(f"topic id {fields['topic_id']!r}: {error}") from error


class ManifestEntry(NamedTuple):
    """One partition as it was at a clean stop."""

    tp: TopicPartition
    topic_id: UUID | None
    log_start_offset: int
    log_end_offset: int
    snapshot_offset: int
    """Of the producer snapshot; -1 where there are no producers."""
    segments: list[tuple[int, int, int, int, int]]
    """(base offset, size, max timestamp, time of creation, bytes of the index of aborted
    transactions), oldest first."""
    has_open_transactions: bool = False


def encode_manifest(entries: Iterable[ManifestEntry]) -> bytes:
    """The manifest, with a CRC of its second line on its first."""
    rows = [
        (
            entry.tp.topic,
            entry.tp.partition,
            None if entry.topic_id is None else entry.topic_id.hex,
            entry.log_start_offset,
            entry.log_end_offset,
            entry.snapshot_offset,
            entry.segments,
            entry.has_open_transactions,
        )
        for entry in entries
    ]
    body = orjson.dumps({"version": _MANIFEST_VERSION, "partitions": rows})
    return b"%08x\n" % crc32c(body) + body


def decode_manifest(data: bytes) -> dict[TopicPartition, ManifestEntry]:
    """The entries of a manifest.

    Raises:
        ValueError: it is damaged or of another version.
    """
    head, _, body = data.partition(b"\n")
    if int(head, 16) != crc32c(body):
        raise ValueError("the manifest's CRC is wrong")
    document = orjson.loads(body)
    if document["version"] != _MANIFEST_VERSION:
        raise ValueError(f"manifest version {document['version']} is not known")
    entries = {}
    for topic, partition, topic_id, *rest in document["partitions"]:
        tp = TopicPartition(topic, partition)
        uuid = None if topic_id is None else UUID(hex=topic_id)
        entries[tp] = ManifestEntry(tp, uuid, *rest)
    return entries
