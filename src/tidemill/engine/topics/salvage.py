"""Read what is readable of an internal topic's log, past any damage, and change nothing.

Knows the files of one partition's folder and the format of batches, and not what records mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from tidemill.errors import TidemillError
from tidemill.log.disk.files import FileSystem
from tidemill.log.disk.log_file import LogFile
from tidemill.log.disk.scan import BatchScanner, find_batch
from tidemill.log.format.records import decode_records
from tidemill.log.names import LOG, SWAP
from tidemill.state.catalog.rebuild import StoredRecord


@dataclass
class Salvage:
    """The readable part of a log.

    Attributes:
        latest: the last record of each key.
        end: the offset behind the last readable batch.
        damage: the damaged places.
    """

    latest: dict[bytes, StoredRecord] = field(default_factory=dict)
    end: int = 0
    damage: list[str] = field(default_factory=list)


def salvage(fs: FileSystem, folder: str) -> Salvage:
    """Return the last readable record of each key in a log without transactions."""
    found = Salvage()
    names = fs.files(folder) if fs.exists(folder) else {}
    for name in sorted(names):
        # A file of an unfinished compaction can have records that are nowhere else.
        if name.endswith((LOG, LOG + SWAP)):
            _read_segment(f"{folder}/{name}", fs.read_bytes(f"{folder}/{name}"), found)
    return found


class _Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, length: int, position: int) -> bytes:
        return self._data[position : position + length]


def _read_segment(path: str, data: bytes, found: Salvage) -> None:
    file = cast("LogFile", _Bytes(data))
    position = next_offset = 0
    while position < len(data):
        scanner = BatchScanner(file, position, len(data), next_offset)
        for at, header in scanner:
            found.end = max(found.end, header.last_offset + 1)
            try:
                _read_batch(data, at, found)
            except TidemillError as error:
                found.damage.append(f"{path}: byte {at}, offset {header.base_offset}: {error}")
        if scanner.damage is None:
            return
        found.damage.append(
            f"{path}: byte {scanner.position}, offset {scanner.next_offset}: {scanner.damage}"
        )
        behind = find_batch(file, scanner.position + 1, len(data), scanner.next_offset)
        if behind is None:
            return
        position, next_offset = behind[0], behind[1].base_offset


def _read_batch(data: bytes, position: int, found: Salvage) -> None:
    for record in decode_records(data, position):
        if record.key is None:
            continue
        key = bytes(record.key)
        before = found.latest.get(key)
        if before is None or before.offset <= record.offset:
            value = None if record.value is None else bytes(record.value)
            found.latest[key] = StoredRecord(record.offset, value)
