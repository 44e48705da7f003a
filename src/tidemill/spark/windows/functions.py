"""Define windows of event time, as functions for ``groupBy``.

    tumbling   |--------|--------|--------|     one after the other
    sliding    |--------|                       overlapping
                   |--------|
                       |--------|
    hopping    |-----|    |-----|    |-----|    with gaps, if the hop is longer than the size
    session    e-e----|      e-----|            until no event arrives for as long as the gap

In SQL, the windows have the same names and parameters: see ``sql``. Results have a column
``window`` with the fields ``start`` (inclusive) and ``end`` (exclusive). Windows are defined on
instants: neither the session's time zone nor daylight saving time moves them. Events without a time
belong to no window. Must not know: topics, pipelines, checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.classic.column import Column as ClassicColumn

from tidemill.duration import Duration
from tidemill.spark.base.pyspark_private import java_column
from tidemill.spark.errors import WindowError
from tidemill.spark.windows.check import DELAY
from tidemill.spark.windows.spec import (
    Kind,
    WindowSpec,
    hopping_spec,
    session_spec,
    sliding_spec,
    tumbling_spec,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.group import GroupedData

NAME = "window"
"""The column of the result with the window."""

_MARKER = "spark.timeWindow"
_OWN = "__tidemill_window"


class WindowColumn(ClassicColumn):
    """A window over a time column: a Column for ``groupBy``.

    Attributes:
        ts: the time column, or its name.
        spec: the kind and the durations of the window.
    """

    # It needs no session until it is used, so pipelines can be declared before Spark starts.
    def __init__(self, ts: Column | str, spec: WindowSpec) -> None:
        self.ts = ts
        self.spec = spec

    def __repr__(self) -> str:
        return f"WindowColumn<{self.ts!r}, {self.spec}>"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.ts, self.spec)

    @property
    def _jc(self) -> Any:
        """The column of Spark's JVM, made when it is used."""
        from pyspark.sql import functions as f

        spec = self.spec
        if spec.has_gaps:
            raise WindowError(
                "hopping: a window with gaps can't be used as a column, because a column can't "
                "drop the events in the gaps",
                hint='Write group_by(df, hopping(...), "key") instead of '
                'df.groupBy(hopping(...), "key").',
            )
        if spec.kind is Kind.SESSION:
            made = f.session_window(self.ts, _text(spec.size)).alias(NAME)
        else:
            made = f.window(self.ts, _text(spec.size), _text(spec.step), _text(spec.start))
        return java_column(made)


def tumbling(ts: Column | str, size: Duration, start: Duration = "0 seconds") -> WindowColumn:
    """Return windows that follow each other: each event belongs to exactly one.

        size 10      |---------|---------|---------|
                     0         10        20        30

    Args:
        ts: the time column (TIMESTAMP, or the ``window`` of an earlier aggregation) or its name.
        size: the length of a window.
        start: an offset of the windows' starts, which count from 1970-01-01T00:00:00Z.

    Returns:
        A column for ``groupBy``.

    Raises:
        WindowError: a duration is malformed, has no fixed length (months), or is not above zero.
    """
    return WindowColumn(ts, tumbling_spec(size, start))


def sliding(
    ts: Column | str, size: Duration, slide: Duration, start: Duration = "0 seconds"
) -> WindowColumn:
    """Return overlapping windows: an event belongs to each window that contains its time.

        size 10,     |---------|
        slide 5           |---------|
                               |---------|
                     0    5    10   15   20

    Args:
        ts: the time column, as in ``tumbling``.
        size: the length of a window.
        slide: the time from one window's start to the next; at most ``size``.
        start: an offset of the windows' starts, as in ``tumbling``.

    Returns:
        A column for ``groupBy``.

    Raises:
        WindowError: as in ``tumbling``, or the slide is longer than the size.
    """
    return WindowColumn(ts, sliding_spec(size, slide, start))


def hopping(
    ts: Column | str, size: Duration, hop: Duration, start: Duration = "0 seconds"
) -> WindowColumn:
    """Return windows of one length at regular starts, which may overlap, touch, or leave gaps.

        size 6,      |-----|   |-----|   |-----|
        hop 10       0     6   10    16  20    26

    Events in the gaps belong to no window and to no group, but they move the watermark. A window is
    final when the watermark passes its end. Windows with gaps need
    ``group_by(df, hopping(...), ...)``, because a column can't drop rows. Windows without gaps work
    in ``df.groupBy``, too.

    Args:
        ts: the time column, as in ``tumbling``.
        size: the length of a window.
        hop: the time from one window's start to the next; if it is longer than ``size``, there are
            gaps.
        start: an offset of the windows' starts, as in ``tumbling``.

    Returns:
        A column for ``group_by``.

    Raises:
        WindowError: as in ``tumbling``.
    """
    return WindowColumn(ts, hopping_spec(size, hop, start))


def session(ts: Column | str, gap: Duration) -> WindowColumn:
    """Return windows that last as long as each event follows the one before within ``gap``.

        gap 5        e---e------|        e------|
                     3   6      11       20     25

    A session starts with its first event and ends ``gap`` after its last one. An event at exactly
    that end still belongs to the session, and moves the end. Spark supports sessions in append and
    complete mode, but not in update mode.

    Args:
        ts: the time column, as in ``tumbling``.
        gap: the time without an event that ends a session.

    Returns:
        A column for ``groupBy``.

    Raises:
        WindowError: as in ``tumbling``.
    """
    return WindowColumn(ts, session_spec(gap))


def group_by(df: DataFrame, window: WindowColumn, *keys: Column | str) -> GroupedData:
    """Group rows by window and keys, like ``df.groupBy(window, *keys)``; also with gaps.

    Args:
        df: a batch or a stream. A stream in append mode needs a watermark on the time column.
        window: the result of ``tumbling``, ``sliding``, ``hopping`` or ``session``.
        keys: further columns to group by.

    Returns:
        Spark's grouped data, for ``agg`` or ``count``.

    Raises:
        WindowError: ``window`` is not a window, or its time column is not a TIMESTAMP.
    """
    from pyspark.sql import functions as f

    if not isinstance(window, WindowColumn):
        raise WindowError(
            f"group_by: {window!r} is not a window",
            hint="The window comes first, then the keys: group_by(df, tumbling(...), 'key').",
        )
    if not window.spec.has_gaps:
        return df.groupBy(window, *keys)
    return _outside_gaps(df, window).groupBy(f.col(_OWN).alias(NAME), *keys)


def _outside_gaps(df: DataFrame, window: WindowColumn) -> DataFrame:
    """Return the rows that belong to a window, with that window as a column.

    Spark's ``window()`` refuses a slide that is longer than the size. So this function does the
    same itself: it adds a filter, and a struct whose metadata mark it as a window with the
    watermark of its time column. Spark drops state and emits windows by the end of that struct.
    Spark does not move a filter on the time column below the watermark, so events in the gaps still
    move the watermark.
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
