"""Topics of workers as tables, which are read on to their end when someone looks.

All viewers of a user share a read, and a look reads what is new since the one before. It belongs
to one event loop. Must not know: pages, what a record means.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Partition, messages_to_end
from tidemill.errors import TidemillError
from tidemill.gateway.reach import REACHED_S

KEPT_S = 0.5
"""How long a table is shown again."""
MOST_BYTES = 64 << 20
"""Largest table."""
_CLIENT = "tidemill-console"

Table = Mapping[bytes, bytes]


@dataclass
class _Kept:
    """The rows of a topic, and up to where it was read."""

    identity: str | None
    read_s: float = 0.0
    rows: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    positions: dict[Partition, int] = field(default_factory=dict)


class Tables:
    """Reads compacted topics whose names are known, so there are few."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._admin: AdminClient | None = None
        self._locks: dict[str, asyncio.Lock] = {}
        self._kept: dict[str, _Kept] = {}

    async def read(self, topic: str) -> Table:
        """Return the last record of each key; none if there is no such topic.

        Raises:
            UnreachableError: no broker answers.
            TidemillError: the topic can't be read, for example without the rights.
        """
        async with self._locks.setdefault(topic, asyncio.Lock()):
            kept = self._kept.get(topic)
            if kept is None or time.monotonic() - kept.read_s > KEPT_S:
                kept = await asyncio.to_thread(self._read, topic)
            return kept.rows

    def expire(self) -> None:
        """Read again at the next look: something was changed here."""
        for each in self._kept.values():
            each.read_s = 0.0

    def _read(self, topic: str) -> _Kept:
        """Read on to the end; from the beginning if it is another topic now."""
        if self._admin is None:
            self._admin = self._kafka.admin(_CLIENT)
        admin = self._admin
        self._kafka.check_reachable(f"read topic {topic}", admin, REACHED_S)
        identity = self._kafka.topic_id(_CLIENT, topic, admin)
        before = self._kept.pop(topic, None)  # what fails half-way is read again
        kept = before if before and before.identity == identity else _Kept(identity)
        ends: dict[Partition, int] = {}
        if identity is not None:
            places = self._kafka.partitions(_CLIENT, topic, admin)
            ends = self._kafka.end_offsets(_CLIENT, places, admin=admin)
        new = {place: end for place, end in ends.items() if end > kept.positions.get(place, 0)}
        if new:
            rows = dict(kept.rows)  # others look at those of before
            for message in messages_to_end(
                self._kafka, _CLIENT, topic, committed=False, starts=kept.positions, ends=new
            ):
                key, value = message.key() or b"", message.value()
                kept.size += len(value or b"") - len(rows.pop(key, b""))
                if value is not None:
                    rows[key] = value
                if kept.size > MOST_BYTES:
                    raise TidemillError(f"topic {topic} has more than {MOST_BYTES >> 20} MiB")
            kept.rows = rows
        kept.positions, kept.read_s = ends, time.monotonic()
        self._kept[topic] = kept
        return kept
