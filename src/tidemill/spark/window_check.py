"""Which output modes a windowed query can have: told before it is started.

``check`` is a table. ``check_query`` reads a DataFrame's plan, and asks Spark's own check last, so
that it refuses whatever Spark would refuse. Must not know: SQL text, sinks, checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemill.errors import OutputModeError
from tidemill.spark.explain import hint_for, told_by_spark
from tidemill.spark.window_spec import Kind

MODES = ("append", "update", "complete")
DELAY = "spark.watermarkDelayMs"
"""In a column's metadata: how late its watermark is, where it has one."""

_TIME_WINDOW = "spark.timeWindow"
_SESSION_WINDOW = "spark.sessionWindow"


def check(
    kind: Kind | str, output_mode: str, *, has_watermark: bool, aggregations: int = 1
) -> tuple[str, ...]:
    """Whether a window can be aggregated in an output mode of Structured Streaming.

    ========  ==================  ===========  ========
    mode      without watermark   watermark    sessions
    ========  ==================  ===========  ========
    append    refused             emits final  yes
    update    state only grows    yes          refused
    complete  keeps all windows   as without   yes
    ========  ==================  ===========  ========

    Args:
        kind: of the window.
        output_mode: "append", "update" or "complete".
        has_watermark: whether the window's time column has one.
        aggregations: how many there are on the way from source to sink.

    Returns:
        Remarks on what is allowed and yet may surprise; none is the best answer.

    Raises:
        OutputModeError: Spark would refuse the query, or it would never emit a row.
    """
    kind = Kind(kind)
    if output_mode not in MODES:
        raise OutputModeError(
            f"there is no output mode {output_mode!r}", hint=f"One of {', '.join(MODES)}."
        )
    if aggregations > 1 and output_mode != "append":
        raise OutputModeError(
            f"{aggregations} aggregations in a row can't be run in {output_mode} mode",
            hint="Use append mode, with a watermark on the time column.",
        )
    if kind is Kind.SESSION and output_mode == "update":
        raise OutputModeError(
            "session: Spark has no session windows in update mode",
            hint="Use append mode (sessions when they have ended) or complete mode.",
        )
    if output_mode == "append" and not has_watermark:
        raise OutputModeError(
            f"{kind}: without a watermark no window is ever final, so append mode would emit none",
            hint="Give the column of the window a watermark (a pipeline's stream: event_time= and "
            "watermark=; else withWatermark(ts, delay) before the aggregation), and group by the "
            "whole window, not by its start.",
        )
    if output_mode == "complete":
        return ("complete mode keeps every window in its state and emits all in every batch",)
    return () if has_watermark else ("without a watermark no window leaves the state",)


def check_query(df: Any, output_mode: str) -> tuple[str, ...]:
    """Whether a streaming DataFrame can be started in an output mode.

    Reads the plan of the DataFrame; runs nothing. A batch DataFrame always can.

    Args:
        df: the DataFrame, of which ``writeStream`` would be started.
        output_mode: "append", "update" or "complete".

    Returns:
        Remarks, as those of ``check``.

    Raises:
        OutputModeError: Spark would refuse the query.
    """
    if not df.isStreaming:
        return ()
    plan = df._jdf.queryExecution().analyzed()
    found = list(_aggregations(plan))
    in_a_row = max((one.depth for one in found), default=0)
    remarks: dict[str, None] = {}
    for one in found:
        if one.kind is not None:
            told = check(
                one.kind, output_mode, has_watermark=one.has_watermark, aggregations=in_a_row
            )
            remarks |= dict.fromkeys(told)
    if output_mode not in MODES:
        raise OutputModeError(
            f"there is no output mode {output_mode!r}", hint=f"One of {', '.join(MODES)}."
        )
    _ask_spark(df, plan, output_mode)
    return tuple(remarks)


@dataclass(frozen=True, slots=True)
class _Aggregation:
    """A streaming aggregation in a plan; ``depth`` counts itself and those below it."""

    kind: Kind | None
    has_watermark: bool
    depth: int


def _aggregations(node: Any) -> Iterator[_Aggregation]:
    below = [one for child in _items(node.children()) for one in _aggregations(child)]
    yield from below
    if node.nodeName() != "Aggregate" or not node.isStreaming():
        return
    depth = 1 + max((one.depth for one in below), default=0)
    kind, has_watermark = None, False
    for expression in _items(node.groupingExpressions()):
        if expression.nodeName() != "AttributeReference":
            continue
        metadata = expression.metadata()
        has_watermark |= metadata.contains(DELAY)
        if metadata.contains(_SESSION_WINDOW):
            kind = Kind.SESSION
        elif metadata.contains(_TIME_WINDOW):
            # A window of one step or of another: for output modes all three are alike.
            kind = Kind.TUMBLING
    yield _Aggregation(kind, has_watermark, depth)


def _ask_spark(df: Any, plan: Any, output_mode: str) -> None:
    """Spark's own checks, which it makes when a query is started."""
    from pyspark.errors import AnalysisException

    jvm = df.sparkSession._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        reason = told_by_spark(str(error))
        raise OutputModeError(
            f"Spark refuses {output_mode} mode: {reason}", hint=hint_for(str(error))
        ) from error


def _items(seq: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    for index in range(seq.size()):
        yield seq.apply(index)
