"""Records what a broker promised to clients, and checks it after a crash.

The invariants are those of Jepsen's queue workloads: every acknowledged record is in the log once,
at its offset; the records of a producer keep their order; the value at an offset never changes, so
a record that a consumer has read remains; a rejected record is never readable.
"""

from __future__ import annotations

import threading
from collections import defaultdict

Place = tuple[str, int, int]
"""topic, partition, offset"""


class Ledger:
    """Notes of producers and consumers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.acknowledged: dict[Place, bytes] = {}
        self.refused: set[bytes] = set()
        self.seen: dict[Place, bytes] = {}
        self.committed: dict[str, int] = {}

    def acknowledge(self, place: Place, value: bytes) -> None:
        with self._lock:
            other = self.acknowledged.setdefault(place, value)
            assert other == value, (
                f"{place} was acknowledged for {other[:20]!r} and for {value[:20]!r}"
            )

    def refuse(self, value: bytes) -> None:
        with self._lock:
            self.refused.add(value)

    def see(self, place: Place, value: bytes) -> None:
        with self._lock:
            other = self.seen.setdefault(place, value)
            assert other == value, (
                f"a consumer read {other[:20]!r} at {place}, and later {value[:20]!r}"
            )

    def commit(self, group: str, offset: int) -> None:
        with self._lock:
            self.committed[group] = offset

    def check(self, found: dict[Place, bytes], *, duplicates: bool) -> None:
        """Compare with everything that is readable now.

        Args:
            found: all records of all partitions.
            duplicates: whether a record may occur more than once (producers that are not
                idempotent and retry).
        """
        for name, notes in (("acknowledged", self.acknowledged), ("read", self.seen)):
            for place, value in notes.items():
                assert found.get(place) == value, (
                    f"{value[:20]!r} was {name} at {place}; there is "
                    f"{(found.get(place) or b'nothing')[:20]!r}"
                )
        values = list(found.values())
        refused = self.refused.intersection(values)
        assert not refused, f"refused, and readable: {[value[:20] for value in refused][:3]}"
        if not duplicates:
            assert len(set(values)) == len(values), "a record occurs twice"
        _check_order(found)


def _check_order(found: dict[Place, bytes]) -> None:
    """Check that numbers rise in a partition (``<producer>:<number>...``) and offsets are dense."""
    last: dict[tuple[str, int, bytes], int] = {}
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    for (topic, partition, offset), value in sorted(found.items()):
        offsets[topic, partition].append(offset)
        producer, number, _ = value.split(b":", 2)
        key = (topic, partition, producer)
        assert int(number) > last.get(key, -1), f"{value[:20]!r} is out of order in {topic}"
        last[key] = int(number)
    for (topic, partition), numbers in offsets.items():
        expected = list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers == expected, f"{topic}-{partition} skips offsets"
