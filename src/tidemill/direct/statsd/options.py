"""The options of a StatsD listener. Must not know: sockets, where the results go."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from enum import IntEnum

from tidemill.direct.statsd.errors import StatsdError


class Dialect(IntEnum):
    """The meaning of lines, because the same bytes differ. The numbers are those of the C code.

    ``g:-5|g`` is a change in etsy's StatsD and a value in Datadog's. ``a:1:2|c`` has a bad part in
    the first, and two values in the second.
    """

    statsd = 0
    dogstatsd = 1


class NameTags(IntEnum):
    """The style of tags within names. The numbers are those of the C code.

    Tags behind ``|#``, Datadog's style, are understood in each dialect.
    """

    none = 0
    influx = 1
    """``name,tag=value:1|c``"""
    librato = 2
    """``name#tag=value:1|c``"""
    signalfx = 3
    """``name[tag=value]:1|c``"""
    graphite = 4
    """``name;tag=value:1|c``"""


@dataclass(frozen=True, slots=True)
class Expiry:
    """For how many intervals a series without a sample is reported: 0 for none.

    A counter is reported as 0 in that time, a gauge with its last value.
    """

    counter: int = 0
    gauge: int = 30
    timer: int = 0
    histogram: int = 0
    distribution: int = 0
    set: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """The intervals in the order of the kinds, which is that of the C code."""
        return astuple(self)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of parsing and aggregating lines.

    Attributes:
        percentiles: Percentages in (0, 100]; what is reported of timers, by etsy's definition.
        max_series: Series in an interval. The samples of others are counted as excess.
        max_values: Values of timers, and members of sets, that are kept in an interval, in total. A
            timer that can't keep another one keeps a uniform sample of its values.
        raw_bytes: Bytes of lines that are kept for ``take_lines``; 0 for none.

    Raises:
        StatsdError: A percentage, a limit or an expiry is out of its range.
    """

    dialect: Dialect = Dialect.statsd
    name_tags: NameTags = NameTags.none
    percentiles: tuple[float, ...] = (90.0,)
    expiry: Expiry = field(default_factory=Expiry)
    max_series: int = 100_000
    max_values: int = 4_000_000
    raw_bytes: int = 0

    def __post_init__(self) -> None:
        for each in self.percentiles:
            if not 0 < each <= 100:
                raise StatsdError(
                    f"percentile {each:g} is not in (0, 100]", hint="Write 99.9 for 99.9 %."
                )
        if not 1 <= self.max_series <= 10_000_000:
            raise StatsdError(f"max_series {self.max_series} is not from 1 to 10,000,000")
        if not 1 <= self.max_values <= 1_000_000_000:
            raise StatsdError(f"max_values {self.max_values} is not from 1 to 1,000,000,000")
        if not 0 <= self.raw_bytes <= 1 << 30:
            raise StatsdError(f"raw_bytes {self.raw_bytes} is not from 0 to {1 << 30}")
        if any(not 0 <= each < 1 << 31 for each in self.expiry.counts):
            raise StatsdError("an expiry is a number of intervals, 0 or more")
