"""What readers of committed records are told beside the bytes: whose records to drop.

Knows one log and the bytes that were read from it.
"""

from __future__ import annotations

from tidemill.log.batch import HEADER_SIZE, Buffer, parse_header, peek
from tidemill.log.partition import PartitionLog


def aborted_in(log: PartitionLog, offset: int, records: Buffer) -> tuple[tuple[int, int], ...]:
    """(producer id, first offset) of each aborted transaction that touches what was read.

    Args:
        offset: from which on was read.
        records: batches below the last stable offset; the last may be cut.

    Raises:
        StorageError: the index of aborted transactions can't be read.
    """
    if not len(records) or not log.has_aborted_transactions:
        return ()
    return tuple(log.aborted_transactions(offset, _end_of(records)))


def _end_of(records: Buffer) -> int:
    """The offset behind the last batch whose header is there."""
    position, last = 0, 0
    while len(records) - position >= HEADER_SIZE:
        last = position
        position += peek(records, position)[1]
    return parse_header(records, last).last_offset + 1
