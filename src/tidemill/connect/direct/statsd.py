"""A bridge that brings StatsD's metrics into a topic, aggregated by interval.

An interval that can't be written yet is not ended: the next one covers it too, so a broker that is
away costs no sample. Must not know: how lines are parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from tidemill.connect.direct.contract import Bridge, Counts, Place
from tidemill.connect.direct.errors import BridgeError, opening_failed
from tidemill.connect.direct.waiting import to_its_end
from tidemill.connect.direct.writing import Writer
from tidemill.direct.statsd import (
    Aggregator,
    Dialect,
    Flush,
    NameTags,
    Options,
    StatsdError,
    parse_notice,
)
from tidemill.direct.statsd.options import Expiry
from tidemill.direct.statsd.series import wide_columns
from tidemill.direct.statsd.sockets import Listener
from tidemill.settings.section import Section

_LINES_S = 0.1
_STOP_S = 3.0
_SET_MS = 500
"""A clock that has moved by more than this against the monotonic one was set."""

Intervals = Annotated[int, Field(ge=0, lt=1 << 31)]


class StatsdOptions(Section):
    """Options of a StatsD bridge."""

    listen: list[str] = Field(
        ["udp://127.0.0.1:8125"],
        min_length=1,
        max_length=16,
        description="udp://HOST:PORT, tcp://HOST:PORT, unixgram:///PATH or unixstream:///PATH.",
    )
    dialect: Literal["statsd", "dogstatsd"] = Field(
        "statsd", description="Etsy's StatsD, or Datadog's: the same bytes mean different things."
    )
    name_tags: Literal["none", "influx", "librato", "signalfx", "graphite"] = Field(
        "none", description="The style of tags within names. Tags behind |# are always understood."
    )
    interval_s: float = Field(
        10.0, ge=0.1, le=3600, description="The interval, aligned to the clock, in seconds."
    )
    percentiles: list[float] = Field(
        [90.0], max_length=20, description="Percentages in (0, 100] to report of timers."
    )
    expire: dict[
        Literal["counter", "gauge", "timer", "histogram", "distribution", "set"], Intervals
    ] = Field({}, description="By type: intervals to report a series without samples; gauge: 30.")
    max_series: int = Field(
        100_000, ge=1, le=10_000_000, description="Most series of an interval. Others are counted."
    )
    max_values: int = Field(
        4_000_000,
        ge=1,
        le=1_000_000_000,
        description="Most values of timers and members of sets in an interval, in total.",
    )
    receive_bytes: int = Field(
        8 << 20,
        ge=4096,
        le=1 << 30,
        description="Receive buffer of datagrams. The kernel gives up to net.core.rmem_max.",
    )
    format: Literal["json", "wide"] = Field(
        "json", description="json has the fields that a type has; wide always has all columns."
    )
    events_topic: str = Field(
        "", description="Topic of events and service checks; default: that of the metrics."
    )
    raw_topic: str = Field("", description="Topic of all lines as they came; default: none.")


class StatsdBridge(Bridge):
    """Receives StatsD's lines, and writes a record per series and interval, keyed by series."""

    options_type = StatsdOptions

    def __init__(self, place: Place, options: StatsdOptions) -> None:
        self._place = place
        self._options = options
        self._aggregator = Aggregator(
            Options(
                dialect=Dialect[options.dialect],
                name_tags=NameTags[options.name_tags],
                percentiles=tuple(options.percentiles),
                expiry=Expiry(**options.expire),
                max_series=options.max_series,
                max_values=options.max_values,
                raw_bytes=16 << 20 if options.raw_topic else 0,
            )
        )
        self._listener = Listener(self._aggregator, options.listen, options.receive_bytes)
        self._writer: Writer | None = None
        self._malformed_notices = 0
        self._flushes = self._postponed = 0
        self._reported: dict[str, int] = {}
        self._interval = _Interval(round(options.interval_s * 1000))
        self._is_partial = True
        self._lines: deque[tuple[bytes, bool]] = deque()  # not written yet; whether it is raw
        self._columns = wide_columns(options.percentiles) if options.format == "wide" else ()

    async def run(self, running: Callable[[], None]) -> None:
        """Receive, and write each interval, until the task is cancelled."""
        await asyncio.to_thread(self._create_topics)
        self._writer = writer = Writer(self._place)
        try:
            try:
                await self._listener.start()
            except StatsdError as error:
                raise opening_failed(error) from error
            running()
            await self._work(writer)
        finally:
            await self._listener.close()
            with contextlib.suppress(BridgeError, TimeoutError):  # no broker: the interval is lost
                # The open interval is written, too.
                await asyncio.wait_for(self._end(writer), _STOP_S)
            await writer.close(_STOP_S)

    def counts(self) -> Counts:
        """Return what was counted since the start."""
        found, traffic = self._aggregator.counts(), self._listener.traffic
        writer = self._writer
        return Counts(
            received=found.lines,
            delivered=0 if writer is None else writer.written,
            lost=traffic.drops + found.lost_raw + found.lost_notices,
            refused=found.malformed_lines
            + found.excess
            + self._malformed_notices
            + traffic.refused
            + traffic.broken
            + (0 if writer is None else writer.refused),
        )

    def details(self) -> Mapping[str, Any]:
        """Return addresses, series, and malformed lines with samples."""
        found, traffic = self._aggregator.counts(), self._listener.traffic
        return {
            "addresses": self._listener.addresses,
            "receive_bytes": self._listener.receive_bytes,
            "packets": traffic.packets,
            "drops": traffic.drops,
            "connections": traffic.connections,
            "series": found.series,
            "excess": found.excess,
            "flushes": self._flushes,
            "postponed": self._postponed,
            "malformed": {
                reason: {"count": each.count, "sample": _text(each.sample)}
                for reason, each in found.malformed.items()
            },
            "last_refusal": "" if self._writer is None else self._writer.last_refusal,
        }

    # --- intervals ----------------------------------------------------------------------------

    def _create_topics(self) -> None:
        options = self._options
        names = {self._place.topic, options.events_topic, options.raw_topic} - {""}
        self._place.kafka.create_topics(
            self._place.client, {name: (self._place.partitions, {}) for name in names}
        )

    async def _work(self, writer: Writer) -> None:
        self._interval = interval = _Interval(round(self._options.interval_s * 1000))
        given = 0
        while True:
            if self._listener.failure is not None:
                raise BridgeError(f"can't receive: {self._listener.failure}")
            left_ms = interval.end_ms - interval.now_ms()
            await asyncio.sleep(min(_LINES_S, max(left_ms, 0) / 1000))
            await self._write_lines(writer)
            writer.poll()
            now_ms, end_ms = interval.now_ms(), interval.end_ms
            if now_ms < end_ms:
                continue
            if writer.given - writer.pending < given:
                # What there was at the end before is still under way: no broker answers. The series
                # continue, and nothing is lost.
                self._postponed += 1
            else:
                # What was taken out of the aggregator is written, or it is lost.
                with self._place.span():
                    await to_its_end(self._flush(writer, end_ms))
            given = writer.given
            interval.end_after(now_ms)

    async def _end(self, writer: Writer) -> None:
        """Write what there is at the end, which is not a whole interval."""
        await self._write_lines(writer)
        await writer.drain()
        self._is_partial = True
        await self._flush(writer, self._interval.now_ms())
        await writer.drain()

    async def _flush(self, writer: Writer, end_ms: int) -> None:
        """End the interval, and give its records to the producer."""
        flush = await asyncio.to_thread(
            self._aggregator.flush, self._interval.start_ms, end_ms, is_partial=self._is_partial
        )
        self._interval.start_ms, self._is_partial = end_ms, False
        self._flushes += 1
        for series, document in flush.documents():
            if self._columns:  # all of them, with the tags as one text
                tags = ",".join(series.tags)
                document = dict.fromkeys(self._columns) | document | {"tags": tags}
            # Not with the time of its sample: brokers refuse batches with a time far ahead.
            key, value = series.key.encode(), orjson.dumps(document)
            await writer.put(self._place.topic, key, value, end_ms)
        await self._write_summary(writer, flush)

    async def _write_summary(self, writer: Writer, flush: Flush) -> None:
        """Write what was lost and refused in the interval: each flush has it."""
        counts, traffic = self._aggregator.counts(), self._listener.traffic
        now = {
            "packets": traffic.packets,
            "drops": traffic.drops,
            "lines": counts.lines,
            "malformed": counts.malformed_lines + self._malformed_notices,
            "excess": counts.excess,
            "lost_raw": counts.lost_raw,
            "lost_events": counts.lost_notices,
        }
        before, self._reported = self._reported, now
        document = {
            "name": self._place.name,
            "type": "listener",
            "timestamp": flush.end_ms,
            "interval_s": (flush.end_ms - flush.start_ms) / 1000,
            "series": len(flush.series),
            **{name: value - before.get(name, 0) for name, value in now.items()},
            **({"partial": True} if flush.is_partial else {}),
        }
        key = f"listener:{self._place.name}".encode()
        await writer.put(self._place.topic, key, orjson.dumps(document), flush.end_ms)

    # --- lines --------------------------------------------------------------------------------

    async def _write_lines(self, writer: Writer) -> None:
        """Write raw lines, if they are wanted, and events with service checks.

        If this is cancelled, the next call writes the rest.
        """
        if not self._lines:
            raw, notices = self._aggregator.take_lines()
            self._lines.extend((line, True) for line in raw)
            self._lines.extend((line, False) for line in notices)
        now_ms = _now_ms()
        while self._lines:
            line, is_raw = self._lines[0]
            if is_raw:
                await writer.put(self._options.raw_topic, None, line, now_ms)
            else:
                await self._write_notice(writer, line, now_ms)
            self._lines.popleft()

    async def _write_notice(self, writer: Writer, line: bytes, now_ms: int) -> None:
        try:
            notice = parse_notice(line)
        except StatsdError:
            self._malformed_notices += 1
            return
        notice["timestamp"] = notice.get("timestamp", 0) * 1000 or now_ms
        key = notice.get("name") or notice.get("aggregation_key") or notice["title"]
        topic = self._options.events_topic or self._place.topic
        await writer.put(topic, key.encode(), orjson.dumps(notice), now_ms)


class _Interval:
    """The open interval, aligned to the clock. If the clock is set, it moves and keeps its length.

    Attributes:
        start_ms: Its start, in milliseconds since the epoch.
        end_ms: Its end.
    """

    def __init__(self, length_ms: int) -> None:
        self._length_ms = length_ms
        self.start_ms = _now_ms()
        self._ahead_ms = self.start_ms - _monotonic_ms()
        self.end_after(self.start_ms)

    def end_after(self, now_ms: int) -> None:
        """Let it end at the next multiple of its length."""
        self.end_ms = (now_ms // self._length_ms + 1) * self._length_ms

    def now_ms(self) -> int:
        """Return the time, after a look whether the clock was set."""
        now_ms = _now_ms()
        before, self._ahead_ms = self._ahead_ms, now_ms - _monotonic_ms()
        if abs(self._ahead_ms - before) > _SET_MS:
            self.start_ms += self._ahead_ms - before
            self.end_after(now_ms)
        return now_ms


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
