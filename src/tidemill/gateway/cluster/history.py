"""The last hour: a ring of samples, one a minute, whose size is fixed.

Must not know: Kafka's protocol, pages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from tidemill.gateway.cluster.state import GroupState, Snapshot, TopicState

PERIOD_S = 60.0
"""Time between two samples."""
SAMPLES = 61
"""Samples that are kept: an hour has 60 steps. One takes 8 bytes for each partition, and about 200
for each topic and group."""
MOST_PARTITIONS = 20_000
"""Partitions that a sample has. Those of a larger cluster have no history."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The ends of all partitions at one moment, and the lag of all groups."""

    at_s: float
    ends: dict[str, array[int]]
    lags: dict[str, int]
    read: dict[str, int]
    """By group, the sum of its committed offsets."""


class History:
    """Keeps samples of one cluster."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)

    def take(self, snapshot: Snapshot) -> None:
        """Add a sample if the last one is old enough."""
        at_s = snapshot.at_ms / 1000
        if self.samples and at_s - self.samples[-1].at_s < PERIOD_S * 0.9:
            return
        if sum(each.partitions for each in snapshot.topics.values()) > MOST_PARTITIONS:
            return
        self.samples.append(
            Sample(
                at_s,
                {name: array("q", each.ends) for name, each in snapshot.topics.items()},
                {name: each.lag for name, each in snapshot.groups.items()},
                {name: each.read for name, each in snapshot.groups.items()},
            )
        )

    def rates(self, topics: Iterable[str]) -> list[tuple[float, float]]:
        """Return records written to topics per second, as pairs of time and rate.

        A time is in seconds since the epoch. A topic counts from its second sample on; one that was
        created again counts as 0 in that step.
        """
        names = list(topics)

        def written(a: Sample, b: Sample) -> int:
            return sum(
                max(0, sum(b.ends[name]) - sum(a.ends[name]))
                for name in names
                if name in a.ends and name in b.ends
            )

        return self._steps(written)

    def read_rates(self, groups: Iterable[str]) -> list[tuple[float, float]]:
        """Return records that groups have committed per second, as pairs of time and rate."""
        names = list(groups)

        def read(a: Sample, b: Sample) -> int:
            pairs = ((a.read.get(name), b.read.get(name)) for name in names)
            return sum(max(0, y - x) for x, y in pairs if x is not None and y is not None)

        return self._steps(read)

    def lags(self, group: str) -> list[tuple[float, float]]:
        """Return the lag of a group in records, as pairs of time and lag."""
        return [(each.at_s, float(each.lags[group])) for each in self.samples if group in each.lags]

    def _steps(self, count: Callable[[Sample, Sample], int]) -> list[tuple[float, float]]:
        samples = list(self.samples)
        return [(b.at_s, count(a, b) / max(0.001, b.at_s - a.at_s)) for a, b in pairwise(samples)]

    def written_at(
        self, topic: str, partition: int, offset: int, now: tuple[float, int] | None = None
    ) -> tuple[float, bool] | None:
        """Return about when the record at an offset was written, in seconds since the epoch.

        It is interpolated between two samples.

        Args:
            now: the time and the end of the partition now, as one sample more.

        Returns:
            The time, and whether it is only known that it was not later; None if nothing is known.
        """
        known = [
            (each.at_s, each.ends[topic][partition])
            for each in self.samples
            if topic in each.ends and partition < len(each.ends[topic])
        ]
        if not known:
            return None
        if now is not None and now[0] > known[-1][0]:
            known.append(now)
        after = bisect_right([end for _, end in known], offset)
        if after == 0:
            return known[0][0], True
        (t0, end0), (t1, end1) = known[after - 1], known[min(after, len(known) - 1)]
        if end1 <= end0:
            return t0, False  # written after the last sample
        return t0 + (t1 - t0) * (offset - end0) / (end1 - end0), False

    def lag_s(
        self, group: GroupState, topics: dict[str, TopicState], now_s: float
    ) -> tuple[float | None, bool]:
        """Return the age in seconds of the oldest record that a group has not read.

        Returns:
            The age (0 without lag, None if it is unknown), and whether it is a lower bound.
        """
        oldest: tuple[float, bool] | None = None
        has_lag = False
        for name, lags in group.lags(topics).items():
            for number, lag in lags.items():
                if not lag:
                    continue
                has_lag = True
                end = topics[name].ends[number]
                found = self.written_at(name, number, end - lag, (now_s, end))
                if found is not None and (oldest is None or found[0] < oldest[0]):
                    oldest = found
        if not has_lag:
            return 0.0, False
        return (None, False) if oldest is None else (max(0.0, now_s - oldest[0]), oldest[1])
