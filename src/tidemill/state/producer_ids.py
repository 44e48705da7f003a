"""Producer ids: claimed in blocks in the catalog's topic, so that none is ever given twice.

A block's record is written before its first id is used; after a restart the rest of the last block
is left unused. Several allocations may be under way at once. Knows no producer.

Source: KIP-98, KIP-730 (blocks of ids).
"""

from __future__ import annotations

from tidemill.errors import InvalidRequestError
from tidemill.state.catalog_format import (
    PRODUCER_IDS,
    decode_key,
    decode_producer_ids,
    encode_producer_ids,
)
from tidemill.state.outcome import Outcome

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1


class ProducerIds:
    """Allocates producer ids."""

    def __init__(self, *, block_size: int = BLOCK_SIZE) -> None:
        self._block_size = block_size
        self._claimed = 0
        """All ids below are claimed in the log."""
        self._claiming = 0
        """All ids below are claimed by records given out, written or not."""
        self._free: list[range] = []
        self._blocks: dict[int, range] = {}
        """Blocks whose record is not written yet, by the ``next`` id of their record."""

    def allocate(self) -> Outcome[int]:
        """One id; with a record (to be written before the id is used) where a block is opened.

        Raises:
            InvalidRequestError: all 2**63 ids are used up.
        """
        while self._free:
            block = self._free[0]
            if block:
                self._free[0] = block[1:]
                return Outcome(block[0])
            self._free.pop(0)
        start = max(self._claimed, self._claiming)
        end = start + self._block_size
        if end > MAX_PRODUCER_ID:
            raise InvalidRequestError("no producer ids are left")
        self._claiming = end
        self._blocks[end] = range(start + 1, end)
        return Outcome(start, [encode_producer_ids(end)])

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of the catalog's topic; False (and no effect) if it is another's.

        Raises:
            InvalidRecordError, FormatVersionError: the record can't be read.
        """
        if decode_key(key)[0] != PRODUCER_IDS:
            return False
        if value is None:
            return True
        end = decode_producer_ids(value)
        self._claimed = max(self._claimed, end)
        block = self._blocks.pop(end, None)
        if block is not None:
            self._free.append(block)
        return True

    def write_failed(self, outcome: Outcome[int]) -> None:
        """The outcome's record could not be written (or nobody knows whether): its id and its
        block are never given out."""
        for record in outcome.records:
            if record.value is not None:
                self._blocks.pop(decode_producer_ids(record.value), None)

    @property
    def claimed(self) -> int:
        """What survives a restart: all ids below may have been used."""
        return self._claimed
