"""Check whether a windowed query can run in an output mode, before it starts.

``check_window`` is a table of the rules. ``check_query`` applies them to the plan of a DataFrame,
and then runs Spark's own check, so it refuses everything that Spark would refuse. Must not know:
SQL text, sinks, checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemill.spark.base.explain import hint_for, spark_message
from tidemill.spark.base.pyspark_private import analyzed_plan, jvm_of
from tidemill.spark.errors import OutputModeError
from tidemill.spark.windows.spec import Kind

MODES = ("append", "update", "complete")
DELAY = "spark.watermarkDelayMs"
"""The key of a column's metadata with the delay of its watermark."""

_TIME_WINDOW = "spark.timeWindow"
_SESSION_WINDOW = "spark.sessionWindow"


def check_window(
    kind: Kind | str, output_mode: str, *, has_watermark: bool, aggregations: int = 1
) -> tuple[str, ...]:
    """Check whether a window can be aggregated in an output mode of Structured Streaming.

    ========  ==================  ===================  =============
    mode      without watermark   with watermark       sessions
    ========  ==================  ===================  =============
    append    refused             emits final windows  supported
    update    state only grows    supported            refused
    complete  keeps all windows   keeps all windows    supported
    ========  ==================  ===================  =============

    Args:
        kind: the kind of the window.
        output_mode: ``append``, ``update`` or ``complete``.
        has_watermark: whether the window's time column has a watermark.
        aggregations: how many aggregations are between the source and the sink.

    Returns:
        Remarks on consequences that may surprise; empty if there are none.

    Raises:
        OutputModeError: Spark would refuse the query, or the query would never emit a row.
    """
    kind = Kind(kind)
    _check_mode(output_mode)
    if aggregations > 1 and output_mode != "append":
        raise OutputModeError(
            f"{aggregations} aggregations in a row are not supported in {output_mode} mode",
            hint="Use append mode, with a watermark on the time column.",
        )
    if kind is Kind.SESSION and output_mode == "update":
        raise OutputModeError(
            "session: Spark does not support session windows in update mode",
            hint="Use append mode (a session is emitted when it has ended) or complete mode.",
        )
    if output_mode == "append" and not has_watermark:
        raise OutputModeError(
            f"{kind}: without a watermark no window is ever final, so append mode would emit none",
            hint="Add a watermark to the window's time column (in a pipeline: event_time= and "
            "watermark= of the stream; else withWatermark(ts, delay) before the aggregation), and "
            "group by the whole window, not by its start.",
        )
    if output_mode == "complete":
        return ("complete mode keeps every window in its state and emits all in every batch",)
    return () if has_watermark else ("without a watermark no window leaves the state",)


def check_query(df: Any, output_mode: str) -> tuple[str, ...]:
    """Check whether a streaming DataFrame can be started in an output mode.

    The check reads the plan of the DataFrame and computes nothing. A batch DataFrame always passes.

    Args:
        df: the DataFrame whose ``writeStream`` is to be started.
        output_mode: ``append``, ``update`` or ``complete``.

    Returns:
        Remarks as those of ``check_window``.

    Raises:
        OutputModeError: Spark would refuse the query.
    """
    if not df.isStreaming:
        return ()
    plan = analyzed_plan(df)
    found = list(_aggregations(plan))
    in_a_row = max((one.depth for one in found), default=0)
    remarks: dict[str, None] = {}
    for one in found:
        if one.kind is not None:
            remarks |= dict.fromkeys(
                check_window(
                    one.kind, output_mode, has_watermark=one.has_watermark, aggregations=in_a_row
                )
            )
    _check_mode(output_mode)
    _run_sparks_check(df, plan, output_mode)
    return tuple(remarks)


def _check_mode(output_mode: str) -> None:
    if output_mode not in MODES:
        raise OutputModeError(
            f"invalid output mode {output_mode!r}", hint=f"Use one of {', '.join(MODES)}."
        )


@dataclass(frozen=True, slots=True)
class _Aggregation:
    """A streaming aggregation in a plan.

    Attributes:
        has_watermark: whether a column by which it groups has a watermark.
        depth: the number of aggregations from the source up to this one.
    """

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
            # For output modes, tumbling, sliding and hopping windows are the same.
            kind = Kind.TUMBLING
    yield _Aggregation(kind, has_watermark, depth)


def _run_sparks_check(df: Any, plan: Any, output_mode: str) -> None:
    """Run the checks that Spark makes when a query starts."""
    from pyspark.errors import AnalysisException

    jvm = jvm_of(df.sparkSession)
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(plan, mode)
    except AnalysisException as error:
        reason = spark_message(str(error))
        raise OutputModeError(
            f"Spark refuses {output_mode} mode: {reason}", hint=hint_for(str(error))
        ) from error


def _items(seq: Any) -> Iterator[Any]:
    """Yield the elements of a Scala Seq."""
    for index in range(seq.size()):
        yield seq.apply(index)
