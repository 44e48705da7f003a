"""The records of one share partition, as a disk has them."""

from __future__ import annotations

from uuid import UUID

from tidemill.state.share_partitions.format import (
    Kind,
    PartitionKey,
    Stored,
    decode_key,
    decode_snapshot,
    decode_update,
)
from tidemill.state.share_partitions.partition import SharePartition

KEY = PartitionKey("g", UUID(int=9), 3)


class Disk:
    """The last value of each key."""

    def __init__(self) -> None:
        self.values: dict[Kind, bytes] = {}
        self.kinds: list[Kind] = []

    def store(self, partition: SharePartition) -> None:
        """Store what changed."""
        record = partition.take_record(1_700_000_000_000)
        kind, key = decode_key(record.key)
        assert key == KEY
        assert record.value is not None
        self.values[kind] = record.value
        self.kinds.append(kind)

    @property
    def last_kind(self) -> Kind:
        return self.kinds[-1]

    @property
    def last(self) -> Stored:
        """The value of the last record."""
        if self.last_kind is Kind.UPDATE:
            return decode_update(self.values[Kind.UPDATE])
        return decode_snapshot(self.values[Kind.SNAPSHOT])[0]

    def restarted(self) -> SharePartition:
        """Return the share partition as a start finds it."""
        snapshot, created_ms = decode_snapshot(self.values[Kind.SNAPSHOT])
        update = self.values.get(Kind.UPDATE)
        changed = None if update is None else decode_update(update)
        return SharePartition.of_stored(KEY, snapshot, created_ms, changed)
