"""Join two streams within a bound of event time.

Must not know: topics, tables, pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from tidemill.duration import Duration, microseconds
from tidemill.spark.errors import JoinError
from tidemill.spark.joins.columns import (
    On,
    check_columns,
    check_distinct,
    check_how,
    column,
    pairs,
)
from tidemill.spark.windows.check import DELAY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RIGHT = "__tidemill_right_"
_JOIN_TYPES = {
    "inner": "inner",
    "left": "left_outer",
    "right": "right_outer",
    "full": "full_outer",
}


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
    """Join events of two streams that have the same key and happened close to each other.

    A pair is emitted as soon as both events have arrived. With ``left``, ``right`` and ``full``, an
    event without a partner is emitted with nulls when the watermark shows that no partner can
    arrive any more; then it also leaves the state. So both streams need a watermark. The watermark
    of a query is that of its slower stream, and it moves only while events arrive. Events without
    a time are dropped. The result is for append mode.

    Args:
        left: a stream with a watermark (``withWatermark``), or a batch DataFrame.
        right: a stream with a watermark, or a batch DataFrame.
        on: columns to compare: a name, several names, or ``{left: right}``.
        within: the longest time between both events, bounds included: one duration for either
            direction, or ``(before, after)``: the right event is at most ``before`` earlier, and
            at most ``after`` later, than the left one.
        how: ``inner``, ``left``, ``right`` or ``full``.
        left_time: the column with the time of left events; default: that of the watermark.
        right_time: the column with the time of right events; default: that of the watermark.
        right_prefix: added before the names of the right side's columns, except those compared.

    Returns:
        The compared columns under their left names, then the other columns of both sides.

    Raises:
        JoinError: a column or a watermark is missing, or both sides have a column of the same
            name.
        DurationError: ``within`` is not a duration.
    """
    check_how(how, tuple(_JOIN_TYPES))
    compared = pairs(on)
    check_columns(left, [name for name, _ in compared], "the left stream")
    check_columns(right, [name for _, name in compared], "the right stream")
    left_time = _time(left, left_time, "left")
    right_time = _time(right, right_time, "right")
    bounds = _bounds(within)
    left_others = _without(left.columns, [name for name, _ in compared])
    right_others = _without(right.columns, [name for _, name in compared])
    renamed = [f"{right_prefix}{name}" for name in right_others]
    check_distinct(left.columns, renamed, "right_prefix")
    joined = _joined(left, right, compared, bounds, how, left_time, right_time)
    keys = [_key(name, _RIGHT + theirs.lower(), how) for name, theirs in compared]
    return joined.select(
        *keys,
        *map(column, left_others),
        *[
            column(_RIGHT + n.lower()).alias(new)
            for n, new in zip(right_others, renamed, strict=True)
        ],
    )


def _joined(
    left: DataFrame,
    right: DataFrame,
    compared: Sequence[tuple[str, str]],
    bounds: tuple[int, int],
    how: str,
    left_time: str,
    right_time: str,
) -> DataFrame:
    """Return all columns of both sides, with names of the right side that are its own.

    The other names also allow to join a stream with itself.
    """
    other = right.filter(column(right_time).isNotNull()).select(
        *[column(name).alias(_RIGHT + name.lower()) for name in right.columns]
    )
    mine = left.filter(column(left_time).isNotNull())
    before, after = bounds
    since, then = column(left_time), column(_RIGHT + right_time.lower())
    condition = then >= since + _interval(-before)
    condition &= then <= since + _interval(after)
    for name, theirs in compared:
        condition &= column(name) == column(_RIGHT + theirs.lower())
    return mine.join(other, condition, _JOIN_TYPES[how])


def _key(name: str, theirs: str, how: str) -> Column:
    from pyspark.sql import functions as f

    if how == "right":
        return column(theirs).alias(name)
    return f.coalesce(column(name), column(theirs)).alias(name) if how == "full" else column(name)


def _bounds(within: Duration | tuple[Duration, Duration]) -> tuple[int, int]:
    both = within if isinstance(within, tuple) else (within, within)
    if len(both) != 2:
        raise JoinError(f"invalid within={within!r}", hint="Use one duration, or (before, after).")
    before, after = (microseconds(each) for each in both)
    if before + after < 0:
        raise JoinError(
            f"invalid within={within!r}: it ends before it begins, so no events could be joined"
        )
    return before, after


def _time(df: DataFrame, name: str | None, side: str) -> str:
    """Return the time column of a side."""
    watermarks = [field.name for field in df.schema if DELAY in field.metadata]
    if name is None:
        if len(watermarks) != 1:
            found = f"watermarks on {', '.join(watermarks)}" if watermarks else "no watermark"
            raise JoinError(
                f"the {side} stream has {found}",
                hint='Add withWatermark("event_time", "1 hour") to the stream, '
                f"or name its time column: {side}_time=...",
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
            "ever, and events without a partner would never be emitted",
            hint=f'Add withWatermark("{field.name}", "1 hour") before the join.',
        )
    return field.name


def _without(names: list[str], taken: list[str]) -> list[str]:
    lower = {name.lower() for name in taken}
    return [name for name in names if name.lower() not in lower]


def _interval(micros: int) -> Column:
    """Return a literal: Spark computes when an event leaves the state from literals only."""
    from pyspark.sql import functions as f

    return f.lit(timedelta(microseconds=micros))
