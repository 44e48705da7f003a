"""Read the committed offsets of a data folder that no broker uses, and change nothing.

Knows the format of the log of committed offsets. Offsets of transactions count, also if they were
aborted: this is for a report about what a damaged partition means for groups.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.engine.internal_topics import OFFSETS
from tidemill.engine.topics.salvage import salvage
from tidemill.errors import TidemillError
from tidemill.log.disk.files import FileSystem, storage_error
from tidemill.log.names import TopicPartition, folder_name
from tidemill.state.groups.format import OffsetKey, decode_key, decode_offset_value


class GroupPosition(NamedTuple):
    """The committed offset of a group in one partition."""

    group_id: str
    offset: int


def committed_offsets(fs: FileSystem, data_dir: str, tp: TopicPartition) -> list[GroupPosition]:
    """Return the groups that have committed an offset of the partition, sorted by name."""
    try:
        stored = salvage(fs, f"{data_dir}/{folder_name(OFFSETS)}")
    except OSError as error:
        raise storage_error(error, "reading", folder_name(OFFSETS)) from error
    found = []
    for raw_key, record in stored.latest.items():
        try:
            key = decode_key(raw_key)
            if isinstance(key, OffsetKey) and (key.topic, key.partition) == tp and record.value:
                offset = decode_offset_value(record.value).offset
                found.append(GroupPosition(key.group_id, offset))
        except TidemillError:
            continue  # a record of a newer version
    return sorted(found)
