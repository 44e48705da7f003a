"""Producer ids, which are claimed in blocks in the catalog's topic, so that none is used twice.

A block's record is written before its first id is used. After a restart the rest of the last block
stays unused. Several allocations can be in flight at the same time. This module must not know any
producer.

Source: KIP-98, KIP-730 (blocks of ids).
"""

from __future__ import annotations

from tidemill.state.catalog.format import (
    PRODUCER_IDS,
    decode_key,
    decode_producer_ids,
    encode_producer_ids,
)
from tidemill.state.errors import InvalidRequestError
from tidemill.state.outcome import Outcome

BLOCK_SIZE = 1000
MAX_PRODUCER_ID = 2**63 - 1


class ProducerIds:
    """Allocates producer ids."""

    def __init__(self, *, block_size: int = BLOCK_SIZE) -> None:
        self._block_size = block_size
        self.claimed = 0
        """The log claims all ids below this one, which survives a restart. They may be in use."""
        self._claiming = 0
        """The records that were returned, written or not, claim all ids below this one."""
        self._free: list[range] = []
        self._blocks: dict[int, range] = {}
        """Blocks whose record is not written yet, by the ``next`` id of their record."""

    def allocate(self) -> Outcome[int]:
        """Return a new id. The record of a new block must be written before the id is used."""
        while self._free:
            block = self._free[0]
            if block:
                self._free[0] = block[1:]
                return Outcome(block[0])
            self._free.pop(0)
        start = self.reserved
        end = start + self._block_size
        if end > MAX_PRODUCER_ID:
            raise InvalidRequestError("all producer ids are used")
        self._claiming = end
        self._blocks[end] = range(start + 1, end)
        return Outcome(start, [encode_producer_ids(end)])

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record of the catalog's topic.

        Returns:
            False if the record is not about producer ids. Then nothing changes.
        """
        if decode_key(key)[0] != PRODUCER_IDS:
            return False
        if value is None:
            return True
        end = decode_producer_ids(value)
        self.claimed = max(self.claimed, end)
        block = self._blocks.pop(end, None)
        if block is not None:
            self._free.append(block)
        return True

    def write_failed(self, outcome: Outcome[int]) -> None:
        """Drop the block of an outcome that failed. Its ids stay unused: the record may exist."""
        for record in outcome.records:
            if record.value is not None:
                self._blocks.pop(decode_producer_ids(record.value), None)

    def skip(self, count: int) -> None:
        """Leave the next ``count`` ids unused, because the log perhaps lost claims of them."""
        self._claiming = self.reserved + count

    @property
    def reserved(self) -> int:
        """All ids below it may be in use, also by claims that are not written yet."""
        return max(self.claimed, self._claiming)
