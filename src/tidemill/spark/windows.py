"""Windows of event time, as functions for ``groupBy``.

    tumbling   |--------|--------|--------|     one after the other
    sliding    |--------|                       one begins before the last has ended
                   |--------|
                       |--------|
    hopping    |-----|    |-----|    |-----|    with gaps, where the hop is longer than the size
    session    e-e----|      e-----|            until nothing comes for as long as the gap

Each has the same name and the same parameters in SQL: see ``sql``. Results have a column ``window``
with the fields ``start`` (inclusive) and ``end`` (exclusive). Windows lie on the line of instants:
neither the session's time zone nor a change of clocks moves one. Events without a time belong to
none. Must not know: topics, pipelines, checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.classic.column import Column as ClassicColumn

from tidemill.errors import WindowError
from tidemill.spark.window_check import DELAY, check, check_query
from tidemill.spark.window_late import LateRecords, late
from tidemill.spark.window_spec import (
    Duration,
    Kind,
    WindowSpec,
    hopping_spec,
    session_spec,
    sliding_spec,
    tumbling_spec,
)
from tidemill.spark.window_sql import rewrite, sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.group import GroupedData

__all__ = [
    "Duration",
    "Kind",
    "LateRecords",
    "WindowColumn",
    "WindowSpec",
    "check",
    "check_query",
    "group_by",
    "hopping",
    "late",
    "rewrite",
    "session",
    "sliding",
    "sql",
    "tumbling",
]

NAME = "window"
"""The column of the result that holds a window."""

_MARKER = "spark.timeWindow"
_OWN = "__tidemill_window"


class WindowColumn(ClassicColumn):
    """A window over a time column: an ordinary Column for ``groupBy``.

    Attributes:
        ts: the time column, or its name.
        spec: the window's kind and durations.
    """

    # Needs no session until it is used, so that pipelines can be declared before Spark starts.
    def __init__(self, ts: Column | str, spec: WindowSpec) -> None:
        self.ts = ts
        self.spec = spec

    def __repr__(self) -> str:
        return f"WindowColumn<{self.ts!r}, {self.spec}>"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.ts, self.spec)

    @property
    def _jc(self) -> Any:
        """Spark's own column, made on demand."""
        from pyspark.sql import functions as f

        spec = self.spec
        if spec.has_gaps:
            raise WindowError(
                "hopping: a window with gaps can't be used as a column alone, since a column can't "
                "leave out the events in the gaps",
                hint='Write group_by(df, hopping(...), "key") for df.groupBy(hopping(...), "key").',
            )
        if spec.kind is Kind.SESSION:
            made = f.session_window(self.ts, _text(spec.size)).alias(NAME)
        else:
            made = f.window(self.ts, _text(spec.size), _text(spec.step), _text(spec.start))
        return made._jc


def tumbling(ts: Column | str, size: Duration, start: Duration = "0 seconds") -> WindowColumn:
    """Windows one after the other: each event belongs to exactly one.

        size 10      |---------|---------|---------|
                     0         10        20        30

    Args:
        ts: the time column (TIMESTAMP, or the ``window`` of an earlier aggregation) or its name.
        size: length of a window.
        start: offset of the windows' starts; they count from 1970-01-01T00:00:00Z.

    Raises:
        WindowError: a duration is malformed, of no fixed length (months), or not above zero.
    """
    return WindowColumn(ts, tumbling_spec(size, start))


def sliding(
    ts: Column | str, size: Duration, slide: Duration, start: Duration = "0 seconds"
) -> WindowColumn:
    """Overlapping windows: an event belongs to each that it falls into.

        size 10,     |---------|
        slide 5           |---------|
                               |---------|
                     0    5    10   15   20

    Args:
        ts: the time column, as in ``tumbling``.
        size: length of a window.
        slide: from one window's start to the next; no longer than ``size``.
        start: offset of the windows' starts, as in ``tumbling``.

    Raises:
        WindowError: as in ``tumbling``, or the slide is longer than the size.
    """
    return WindowColumn(ts, sliding_spec(size, slide, start))


def hopping(
    ts: Column | str, size: Duration, hop: Duration, start: Duration = "0 seconds"
) -> WindowColumn:
    """Windows of one length at regular starts, which may overlap, touch, or leave gaps.

        size 6,      |-----|   |-----|   |-----|
        hop 10       0     6   10    16  20    26

    Events in the gaps belong to no window and appear in no group; they do move the watermark. A
    window is final when the watermark passes its end, not the next one's start. Windows with gaps
    need ``group_by(df, hopping(...), ...)``, as no column can leave out rows; those without work in
    ``df.groupBy``, too.

    Args:
        ts: the time column, as in ``tumbling``.
        size: length of a window.
        hop: from one window's start to the next; longer than ``size`` leaves gaps.
        start: offset of the windows' starts, as in ``tumbling``.

    Raises:
        WindowError: as in ``tumbling``.
    """
    return WindowColumn(ts, hopping_spec(size, hop, start))


def session(ts: Column | str, gap: Duration) -> WindowColumn:
    """Windows that last as long as each event comes within ``gap`` of the one before.

        gap 5        e---e------|        e------|
                     3   6      11       20     25

    A session starts with its first event and ends ``gap`` after its last; an event at exactly that
    end still belongs to it, and moves the end. Spark allows it in append and complete mode, not in
    update.

    Args:
        ts: the time column, as in ``tumbling``.
        gap: time without an event that ends a session.

    Raises:
        WindowError: as in ``tumbling``.
    """
    return WindowColumn(ts, session_spec(gap))


def group_by(df: DataFrame, window: WindowColumn, *keys: Column | str) -> GroupedData:
    """Group rows by window and keys: ``df.groupBy(window, *keys)``, for windows with gaps, too.

    Args:
        df: batch or stream; for a stream in append mode, with a watermark on the time column.
        window: of ``tumbling``, ``sliding``, ``hopping`` or ``session``.
        keys: further columns to group by.

    Raises:
        WindowError: the time column is not a TIMESTAMP.
    """
    from pyspark.sql import functions as f

    if not isinstance(window, WindowColumn):
        raise WindowError(
            f"group_by: {window!r} is no window",
            hint="The window comes first, then the keys: group_by(df, tumbling(...), 'key').",
        )
    if not window.spec.has_gaps:
        return df.groupBy(window, *keys)
    return _outside_gaps(df, window).groupBy(f.col(_OWN).alias(NAME), *keys)


def _outside_gaps(df: DataFrame, window: WindowColumn) -> DataFrame:
    """The rows that belong to a window, with that window as a column.

    Spark's ``window()`` refuses a slide longer than the size. What it would do is done here: a
    filter, and a struct whose metadata tell that it is a window, and that there is a watermark on
    the column it was made from. State is then dropped, and windows emitted, by the struct's end.
    Spark does not move a filter on the column of the watermark below the watermark: events in the
    gaps still move it.
    """
    from pyspark.sql import functions as f

    spec, ts = window.spec, f.col(window.ts) if isinstance(window.ts, str) else window.ts
    field = df.select(ts).schema[0]
    if field.dataType.typeName() == "struct":  # the window of an earlier aggregation
        df = df.select("*", f.window_time(ts).alias(f"{_OWN}_time"))
        ts = f.col(f"{_OWN}_time")
        field = df.select(ts).schema[0]
    if field.dataType.typeName() != "timestamp":
        raise WindowError(
            f"hopping: {field.name} is a {field.dataType.simpleString()}, and windows with gaps "
            "need a timestamp",
            hint="Cast it: col('ts').cast('timestamp').",
        )
    metadata = {key: value for key, value in field.metadata.items() if key == DELAY}
    time = f.unix_micros(ts)
    since = f.pmod(time - f.lit(spec.start), f.lit(spec.step))
    made = f.struct(
        f.timestamp_micros(time - since).alias("start"),
        f.timestamp_micros(time - since + f.lit(spec.size)).alias("end"),
    )
    inside = df.filter(since < f.lit(spec.size))
    return inside.select("*", made.alias(_OWN, metadata={**metadata, _MARKER: True}))


def _text(micros: int) -> str:
    return f"{micros} microseconds"
