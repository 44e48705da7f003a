"""The self-check: the same figures again, straight from the data set, without log and pipeline.

Takes another way than the replay on purpose: it reads the wall clock of New York (date, scheduled
time, delay) where the replay reads the data set's UTC hours, so that a mistake about time zones or
daylight saving time shows as an unequal window. Sums are of whole minutes, so equal means equal to
the last bit. Knows nothing of events, topics or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidemill.demo.flights import ORIGIN_ZONE, Stretch, raw_flights

HOUR = 3600

WindowKey = tuple[str, int]
"""Airport and start of the window (Unix time in seconds)."""


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Departures from one airport in one hour.

    Attributes:
        departures: how many flights left.
        delay_minutes: the sum of their delays; early departures count negative.
        mean_delay_minutes: ``delay_minutes / departures``.
    """

    departures: int
    delay_minutes: int
    mean_delay_minutes: float


@dataclass(frozen=True)
class Comparison:
    """Computed windows against expected ones.

    Attributes:
        equal: how many windows are equal in all figures.
        unequal: windows with (expected, computed).
        missing: windows that were expected and not computed.
        unexpected: windows that were computed and not expected.
    """

    equal: int
    unequal: Mapping[WindowKey, tuple[WindowFigures, WindowFigures]]
    missing: Mapping[WindowKey, WindowFigures]
    unexpected: Mapping[WindowKey, WindowFigures]

    @property
    def expected(self) -> int:
        """How many windows there should be."""
        return self.equal + len(self.unequal) + len(self.missing)

    @property
    def all_equal(self) -> bool:
        """Whether the computed windows are exactly the expected ones, and there are any."""
        return self.expected > 0 and not (self.unequal or self.missing or self.unexpected)


def expected_windows(
    stretch: Stretch, rows: Iterable[Mapping[str, str | None]] | None = None
) -> dict[WindowKey, WindowFigures]:
    """Departures and mean delay per airport and hour of all that left within the stretch.

    Args:
        stretch: the days.
        rows: rows of the flights table; default: the data set's.

    Raises:
        DataSetMissingError: the data set is not installed.
    """
    sums: dict[WindowKey, list[int]] = {}
    for row in raw_flights(stretch) if rows is None else rows:
        if row["dep_delay"] is None:
            continue
        delay = int(row["dep_delay"])
        left = _left(row, delay)
        if left not in stretch:
            continue
        figures = sums.setdefault((str(row["origin"]), left - left % HOUR), [0, 0])
        figures[0] += 1
        figures[1] += delay
    return {key: WindowFigures(count, total, total / count) for key, (count, total) in sums.items()}


def compare(
    expected: Mapping[WindowKey, WindowFigures], computed: Mapping[WindowKey, WindowFigures]
) -> Comparison:
    """Each window for equality, exactly."""
    both = expected.keys() & computed.keys()
    unequal = {
        key: (expected[key], computed[key])
        for key in sorted(both)
        if expected[key] != computed[key]
    }
    return Comparison(
        equal=len(both) - len(unequal),
        unequal=unequal,
        missing={key: expected[key] for key in sorted(expected.keys() - both)},
        unexpected={key: computed[key] for key in sorted(computed.keys() - both)},
    )


def _left(row: Mapping[str, str | None], delay: int) -> int:
    """When the flight of a row left, from New York's wall clock (Unix time in seconds)."""
    scheduled = int(str(row["sched_dep_time"]))
    day = datetime(int(str(row["year"])), int(str(row["month"])), int(str(row["day"])))
    wall = day + timedelta(minutes=scheduled // 100 * 60 + scheduled % 100 + delay)
    return int(wall.replace(tzinfo=ORIGIN_ZONE).astimezone(UTC).timestamp())
