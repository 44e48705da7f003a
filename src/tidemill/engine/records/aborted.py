"""Find the aborted transactions in the bytes of a read.

A reader of committed records receives this list beside the bytes and drops the records in it.
Knows one log and the bytes that were read from it.
"""

from __future__ import annotations

from tidemill.log.format.batch import HEADER_SIZE, Buffer, parse_header, peek
from tidemill.log.partition.partition import PartitionLog


def aborted_in(log: PartitionLog, offset: int, records: Buffer) -> tuple[tuple[int, int], ...]:
    """Return (producer id, first offset) of each aborted transaction that overlaps the bytes.

    Args:
        offset: the offset from which the bytes were read.
        records: batches below the last stable offset. The last one may be cut.
    """
    if not len(records) or not log.has_aborted_transactions:
        return ()
    return tuple(log.aborted_transactions(offset, _end_of(records)))


def _end_of(records: Buffer) -> int:
    """Return the offset after the last batch whose header is complete."""
    position, last = 0, 0
    while len(records) - position >= HEADER_SIZE:
        last = position
        position += peek(records, position)[1]
    return parse_header(records, last).last_offset + 1
