"""Offsets committed inside transactions that have not ended: held back, by producer id.

A plain container: who may commit, and what an ended transaction does to the offsets that readers
see, is ``offsets``' business. Knows no record's bytes and no clock.

Source: KIP-98; Apache Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.state.offsets_format import OffsetValue

Position = tuple[str, int]
"""(topic, partition)"""


class LoggedOffset(NamedTuple):
    """A committed position, and where its record stands in ``__consumer_offsets``."""

    value: OffsetValue
    log_offset: int


class PendingOffsets:
    """What open transactions have committed: one offset per producer id, group and position."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[tuple[str, Position], LoggedOffset]] = {}
        self._by_group: dict[str, dict[Position, set[int]]] = {}
        """group id -> position -> producer ids; no empty dict or set in it"""

    def add(
        self, producer_id: int, group_id: str, position: Position, offset: LoggedOffset
    ) -> None:
        """A producer committed; its earlier offset for the position is replaced."""
        self._by_producer.setdefault(producer_id, {})[group_id, position] = offset
        self._by_group.setdefault(group_id, {}).setdefault(position, set()).add(producer_id)

    def take(self, producer_id: int) -> dict[tuple[str, Position], LoggedOffset]:
        """A producer's transaction has ended: what it had committed is removed and given back."""
        taken = self._by_producer.pop(producer_id, {})
        for group_id, position in taken:
            self._forget(producer_id, group_id, position)
        return taken

    def drop(self, group_id: str, position: Position) -> None:
        """The position was deleted: no transaction brings it back."""
        for producer_id in self._by_group.get(group_id, {}).get(position, frozenset()).copy():
            offsets = self._by_producer[producer_id]
            del offsets[group_id, position]
            if not offsets:
                del self._by_producer[producer_id]
            self._forget(producer_id, group_id, position)

    def _forget(self, producer_id: int, group_id: str, position: Position) -> None:
        positions = self._by_group[group_id]
        positions[position].discard(producer_id)
        if not positions[position]:
            del positions[position]
            if not positions:
                del self._by_group[group_id]

    def positions(self, group_id: str) -> list[Position]:
        """Positions of a group that an open transaction has committed."""
        return list(self._by_group.get(group_id, ()))

    def has(self, group_id: str, position: Position) -> bool:
        """Whether an open transaction has committed the position."""
        return position in self._by_group.get(group_id, ())

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_group

    def __iter__(self) -> Iterator[tuple[str, list[Position]]]:
        """Each group with its positions."""
        return iter([(group_id, list(of)) for group_id, of in self._by_group.items()])

    def stored(self) -> dict[int, dict[tuple[str, Position], LoggedOffset]]:
        """What survives a restart: by producer id."""
        return {producer_id: dict(offsets) for producer_id, offsets in self._by_producer.items()}
