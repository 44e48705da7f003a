"""Joins of two streams within a bound of event time.

Must not know: topics, tables, pipelines.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tidemill.errors import JoinError
from tidemill.spark.join_columns import (
    On,
    check_columns,
    check_distinct,
    check_how,
    column,
    pairs,
)
from tidemill.spark.window_check import DELAY
from tidemill.spark.window_spec import Duration, microseconds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RIGHT = "__tidemill_right_"
_SPARKS = {"inner": "inner", "left": "left_outer", "right": "right_outer", "full": "full_outer"}


def stream_stream(
    left: DataFrame,
    right: DataFrame,
    *,
    on: On,
    within: Duration | tuple[Duration, Duration],
    how: str = "inner",
    left_time: str | None = None,
    right_time: str | None = None,
    right_prefix: str = "",
) -> DataFrame:
    """Pairs of events that have the same key and happened within a time of each other.

    A pair comes as soon as both are there. With ``left``, ``right`` and ``full``, an event that
    found no partner comes with nulls when the watermark says that none can come any more; the
    watermark of a query is that of its slower stream, and moves only while events arrive. An event
    leaves the state at that time, so both streams need a watermark. Events without a time are left
    out. The result is for append mode.

    Args:
        left, right: streams with watermarks (``withWatermark``), or batches.
        on: columns to compare: a name, several, or ``{left: right}``.
        within: ``"1 hour"``: at most so long before or after each other, bounds included; or
            ``(before, after)``: the right event at most ``before`` before the left one, and at most
            ``after`` after it.
        how: ``inner``, ``left``, ``right`` or ``full``.
        left_time, right_time: columns of the events' times; default: those of the watermarks.
        right_prefix: put before the names of the right side's columns, but those compared.

    Returns:
        The compared columns under the left names, then the other columns of both sides.

    Raises:
        JoinError: a column or a watermark is missing, or two columns have one name.
        WindowError: ``within`` is no duration.
    """

    check_how(how, tuple(_SPARKS))
    compared = pairs(on)
    check_columns(left, [name for name, _ in compared], "the left stream")
    check_columns(right, [name for _, name in compared], "the right stream")
    left_time = _time(left, left_time, "left")
    right_time = _time(right, right_time, "right")
    before, after = _bounds(within)
    left_others = _without(left.columns, [name for name, _ in compared])
    right_others = _without(right.columns, [name for _, name in compared])
    renamed = [f"{right_prefix}{name}" for name in right_others]
    check_distinct(left.columns, renamed, "right_prefix")

    # Names of their own, so that a stream can be joined with itself.
    other = right.filter(column(right_time).isNotNull()).select(
        *[column(name).alias(_RIGHT + name.lower()) for name in right.columns]
    )
    mine = left.filter(column(left_time).isNotNull())
    since, then = column(left_time), column(_RIGHT + right_time.lower())
    condition = then >= since + _interval(-before)
    condition &= then <= since + _interval(after)
    for name, theirs in compared:
        condition &= column(name) == column(_RIGHT + theirs.lower())
    joined = mine.join(other, condition, _SPARKS[how])
    keys = [_key(name, _RIGHT + theirs.lower(), how) for name, theirs in compared]
    return joined.select(
        *keys,
        *map(column, left_others),
        *[
            column(_RIGHT + n.lower()).alias(new)
            for n, new in zip(right_others, renamed, strict=True)
        ],
    )


def _key(name: str, theirs: str, how: str) -> Column:
    from pyspark.sql import functions as f

    if how == "right":
        return column(theirs).alias(name)
    return f.coalesce(column(name), column(theirs)).alias(name) if how == "full" else column(name)


def _bounds(within: Duration | tuple[Duration, Duration]) -> tuple[int, int]:
    both = within if isinstance(within, tuple) else (within, within)
    if len(both) != 2:
        raise JoinError(f"within={within!r} is no bound", hint="One duration, or (before, after).")
    before, after = (microseconds(each) for each in both)
    if before + after < 0:
        raise JoinError(f"within={within!r} begins after its end: nothing could be joined")
    return before, after


def _time(df: DataFrame, name: str | None, side: str) -> str:
    """The time column of a side; with a watermark, if it is a stream."""
    watermarks = [field.name for field in df.schema if DELAY in field.metadata]
    if name is None:
        if len(watermarks) != 1:
            found = f"watermarks on {', '.join(watermarks)}" if watermarks else "no watermark"
            raise JoinError(
                f"the {side} stream has {found}",
                hint='Put withWatermark("event_time", "1 hour") on it, '
                f"or say which column is its time: {side}_time=...",
            )
        return watermarks[0]
    check_columns(df, [name], f"the {side} stream")
    field = next(f for f in df.schema if f.name.lower() == name.lower())
    if field.dataType.typeName() != "timestamp":
        raise JoinError(
            f"{side}_time {field.name} is {field.dataType.simpleString()}, not a timestamp"
        )
    if df.isStreaming and field.name not in watermarks:
        raise JoinError(
            f"the {side} stream has no watermark on {field.name}: its events would be kept for "
            "ever, and those without a partner would never come",
            hint=f'Put withWatermark("{field.name}", "1 hour") before the join.',
        )
    return field.name


def _without(names: list[str], taken: list[str]) -> list[str]:
    lower = {name.lower() for name in taken}
    return [name for name in names if name.lower() not in lower]


def _interval(micros: int) -> Column:
    """A literal: only of such does Spark work out when an event can leave the state."""
    from pyspark.sql import functions as f

    return f.lit(timedelta(microseconds=micros))
