"""Choose the format in which Spark keeps the state of joins of two streams.

Format 3 has one store for each task, format 2 four. Format 4 also sorts events by their time: it
finds those that leave the state without reading the others, and reads only those that are within
the bound. It needs one event time on each side. Must not know: sessions' settings, pipelines,
checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.spark.base.pyspark_private import analyzed_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WITH_TIMES, IN_ONE_STORE = "4", "3"

_COLUMN = re.compile(r"#(\d+)")
_EVENT_TIME = re.compile(r"#(\d+)-T\d+ms$")
"""The end of Spark's text of a column with a watermark; it has the watermark's delay."""


def join_state_format(df: DataFrame) -> str:
    """Return the number of the format that suits all joins of two streams in a query.

    Args:
        df: the query's result. It is not computed.
    """
    joins = list(_stream_joins(analyzed_plan(df)))
    return WITH_TIMES if joins and all(map(_has_bound, joins)) else IN_ONE_STORE


def _stream_joins(node: Any) -> Iterator[Any]:
    children = [node.children().apply(index) for index in range(node.children().size())]
    if node.nodeName() == "Join" and all(each.isStreaming() for each in children):
        yield node
    for each in children:
        yield from _stream_joins(each)


def _has_bound(join: Any) -> bool:
    """Whether each side of a join has one event time, a timestamp, and the condition names both.

    A column that the condition names is part of the state, although the result may lack it.
    """
    if join.condition().isEmpty():
        return False
    named = set(_COLUMN.findall(join.condition().get().toString()))
    times = [_event_time(join.children().apply(index)) for index in range(2)]
    return all(each is not None and each in named for each in times)


def _event_time(side: Any) -> str | None:
    """Return Spark's number of the only event time among the columns of a side, or None."""
    columns = side.output()
    # One text for all: one call into the JVM for each column would be slow.
    texts = columns.mkString("\n").split("\n")
    found = [(i, match[1]) for i, match in enumerate(map(_EVENT_TIME.search, texts)) if match]
    if len(found) != 1 or len(texts) != columns.size():
        return None
    [(index, number)] = found
    # The other kind is a window, for which the format of the other joins does as well.
    return number if columns.apply(index).dataType().typeName() == "timestamp" else None
