"""What a streaming DataFrame is made of, read from Spark's plan: its sources, and what keeps state.

Must not know: checkpoints, sinks, pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.spark.checkpoint import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "Join",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
    }
)
# Numbers that Spark gives expressions and plans anew in each session.
_NUMBERS = re.compile(r"#\d+L?|plan_id=\d+|@[0-9a-f]{4,}|\[id=\d+\]")


def shape_of(df: DataFrame, mode: str, sources: tuple[str, ...]) -> Shape:
    """The shape of a query.

    Args:
        df: its result; nothing is run.
        mode: its output mode.
        sources: what it reads.
    """
    plan = df._jdf.queryExecution().analyzed()
    found = "\n".join(_normal(node.treeString()) for node in _topmost_stateful(plan))
    return Shape(sources, mode, found)


def _topmost_stateful(node: Any) -> Iterator[Any]:
    if node.nodeName() in _STATEFUL and _keeps_state(node):
        yield node  # with all below it
        return
    children = node.children()
    for index in range(children.size()):
        yield from _topmost_stateful(children.apply(index))


def _keeps_state(node: Any) -> bool:
    """Streaming, and of a join both sides."""
    children = node.children()
    return all(children.apply(index).isStreaming() for index in range(children.size()))


def _normal(text: str) -> str:
    return _NUMBERS.sub("", text)
