"""Read and write ``partition.metadata`` in a partition's folder: topic id and note of the topic.

Knows one file. A damaged file counts as one that says nothing.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidemill.log.disk.checkpoints import (
    TopicNote,
    decode_metadata,
    decode_note,
    encode_metadata,
)
from tidemill.log.disk.files import FileSystem, storage_error
from tidemill.log.names import TopicPartition, folder_name
from tidemill.log.partition.sync import METADATA
from tidemill.log.store import LogStore


class FolderMetadata(NamedTuple):
    """The topic of a partition's folder, as the folder says; None where it does not say it."""

    topic_id: UUID | None = None
    note: TopicNote | None = None


def read_metadata(fs: FileSystem, folder: str) -> FolderMetadata:
    """Return what the folder says about its topic."""
    try:
        data = fs.read_bytes(f"{folder}/{METADATA}")
    except OSError:
        return FolderMetadata()
    try:
        topic_id = decode_metadata(data)
    except ValueError:
        return FolderMetadata()
    try:
        return FolderMetadata(topic_id, decode_note(data))
    except ValueError:
        return FolderMetadata(topic_id)


def read_folder(store: LogStore, tp: TopicPartition) -> FolderMetadata:
    """Return what a partition's folder says about its topic."""
    return read_metadata(store.environment.fs, f"{store.path}/{folder_name(tp)}")


def write_metadata(
    fs: FileSystem, folder: str, topic_id: UUID, partition: int, note: TopicNote
) -> None:
    """Write the file durably; blocks."""
    path = f"{folder}/{METADATA}"
    try:
        fs.write_atomic(path, encode_metadata(topic_id, partition, note))
    except OSError as error:
        raise storage_error(error, "writing", path) from error
