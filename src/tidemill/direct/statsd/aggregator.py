"""Aggregates packets of StatsD, and gives the series of each interval.

The clock is that of the caller. Must not know: sockets (but the C code receives from a descriptor),
where the results go.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Buffer

from tidemill.direct.statsd.options import Options
from tidemill.direct.statsd.series import REASONS, Series, figures, series_of
from tidemill.native import extension

_NOTICE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Malformed:
    """Malformed lines of one kind: how many, and the last of them, cut to 256 bytes."""

    count: int
    sample: bytes


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts since the start.

    Attributes:
        lines: Lines, malformed ones and notices among them.
        excess: Samples of series above ``max_series``.
        notices: Events and service checks.
        lost_notices: Those for which there was no room until ``take_lines``.
        lost_raw: Lines of which the same is true, if raw lines are kept.
        series: Series that the table has now.
        malformed: By reason.
    """

    lines: int = 0
    excess: int = 0
    notices: int = 0
    lost_notices: int = 0
    lost_raw: int = 0
    series: int = 0
    malformed: Mapping[str, Malformed] = field(default_factory=dict)

    @property
    def malformed_lines(self) -> int:
        """All malformed lines, or malformed parts of lines."""
        return sum(each.count for each in self.malformed.values())


@dataclass(frozen=True, slots=True)
class Flush:
    """The series of an interval.

    Attributes:
        start_ms: The start of the interval, in milliseconds since the epoch.
        end_ms: Its end.
        is_partial: Whether the listener was not there for the whole interval.
        series: All series that are reported.
    """

    start_ms: int
    end_ms: int
    is_partial: bool
    series: list[Series]
    percentiles: tuple[float, ...]

    def documents(self) -> Iterator[tuple[Series, dict[str, Any]]]:
        """Yield each series with the document of its record."""
        interval_s = max(self.end_ms - self.start_ms, 1) / 1000
        for series in self.series:
            timed = series.timestamp_s
            document: dict[str, Any] = {
                "name": series.name,
                "type": series.kind,
                "tags": series.tags,
                "timestamp": self.end_ms if timed is None else timed * 1000,
                "interval_s": interval_s,
                **figures(series, interval_s, self.percentiles),
                **series.origin,
            }
            if self.is_partial:
                document["partial"] = True
            if series.is_sampled:
                document["sampled"] = True
            yield series, document


class Aggregator:
    """Aggregates the packets of one listener. Its methods can be called by several threads.

    Args:
        options: How lines are parsed and aggregated.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.table = extension.StatsdTable(
            int(options.dialect),
            int(options.name_tags),
            options.max_series,
            options.max_values,
            options.raw_bytes,
            _NOTICE_BYTES,
            secrets.randbits(64),
            secrets.randbits(64),
        )

    def feed(self, packet: Buffer) -> None:
        """Take the lines of a packet. A malformed one is counted."""
        self.table.feed(packet)

    def cut(self, start: Buffer) -> None:
        """Count a line that is too long, of which this is the start."""
        self.table.cut(start)

    def flush(self, start_ms: int, end_ms: int, *, is_partial: bool = False) -> Flush:
        """End the interval, and return its series."""
        series = [series_of(each) for each in self.table.take(*self.options.expiry.counts)]
        return Flush(start_ms, end_ms, is_partial, series, self.options.percentiles)

    def take_lines(self) -> tuple[list[bytes], list[bytes]]:
        """Return the raw lines since the last call, if they are kept, and events with checks."""
        raw, notices = self.table.take_lines()
        return raw.split(b"\n")[:-1], notices.split(b"\n")[:-1]

    def counts(self) -> Counts:
        """Return what was counted since the start."""
        lines, excess, notices, lost_notices, lost_raw, series, malformed = self.table.counts()
        named = {
            reason: Malformed(*each)
            for reason, each in zip(REASONS, malformed, strict=True)
            if each[0]
        }
        return Counts(lines, excess, notices, lost_notices, lost_raw, series, named)
