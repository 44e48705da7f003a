"""Holds the offsets that open transactions have committed, by producer id, until they end.

A plain container. ``offsets.machine`` decides who may commit, and what an ended transaction does to
the offsets that clients see. This module must not know the bytes of a record or the clock.

Source: KIP-98; Apache Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.state.types import CommittedOffset

Position = tuple[str, int]
"""(topic, partition)"""


class LoggedOffset(NamedTuple):
    """A committed offset, and the offset of its record in ``__consumer_offsets``."""

    value: CommittedOffset
    log_offset: int


class PendingOffsets:
    """The offsets of open transactions: one per producer id, group and partition."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[tuple[str, Position], LoggedOffset]] = {}
        self._by_group: dict[str, dict[Position, set[int]]] = {}
        """Group id -> position -> producer ids. It contains no empty dict or set."""

    def add(
        self, producer_id: int, group_id: str, position: Position, offset: LoggedOffset
    ) -> None:
        """Add an offset. It replaces the producer's earlier one for the same position."""
        self._by_producer.setdefault(producer_id, {})[group_id, position] = offset
        self._by_group.setdefault(group_id, {}).setdefault(position, set()).add(producer_id)

    def take(self, producer_id: int) -> dict[tuple[str, Position], LoggedOffset]:
        """Remove and return the offsets of a producer whose transaction has ended."""
        taken = self._by_producer.pop(producer_id, {})
        for group_id, position in taken:
            self._forget(producer_id, group_id, position)
        return taken

    def drop(self, group_id: str, position: Position) -> None:
        """Remove a deleted position from all transactions, so that none restores it."""
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
        """Return the positions of a group that open transactions have committed."""
        return list(self._by_group.get(group_id, ()))

    def has(self, group_id: str, position: Position) -> bool:
        """Return whether an open transaction has committed the position."""
        return position in self._by_group.get(group_id, ())

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_group

    def __iter__(self) -> Iterator[str]:
        """Yield the groups that open transactions have committed offsets of."""
        return iter(self._by_group)

    def stored(self) -> dict[int, dict[tuple[str, Position], LoggedOffset]]:
        """Return the state that survives a restart, by producer id."""
        return {producer_id: dict(offsets) for producer_id, offsets in self._by_producer.items()}
