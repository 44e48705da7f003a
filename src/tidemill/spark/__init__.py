"""Apache Spark through PySpark. Knows Kafka clients, never the broker's inside.

What a pipeline's file needs is here by its name: ``from tidemill.spark import Pipeline, TopicSink,
tumbling``. Each name is loaded when it is first asked for: to look at a pipeline, no Spark is
needed. The window ``session`` is in ``tidemill.spark.windows`` only: here, that name is a module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.spark.joins import enrich as enrich
    from tidemill.spark.joins import enrich_as_of as enrich_as_of
    from tidemill.spark.joins import join_tables as join_tables
    from tidemill.spark.joins import stream_stream as stream_stream
    from tidemill.spark.pipeline import Pipeline as Pipeline
    from tidemill.spark.runner import Runner as Runner
    from tidemill.spark.runner import RunOptions as RunOptions
    from tidemill.spark.session import spark_session as spark_session
    from tidemill.spark.sinks import ChangelogSink as ChangelogSink
    from tidemill.spark.sinks import DuckDBSink as DuckDBSink
    from tidemill.spark.sinks import ForeachBatchSink as ForeachBatchSink
    from tidemill.spark.sinks import ParquetSink as ParquetSink
    from tidemill.spark.sinks import PostgresSink as PostgresSink
    from tidemill.spark.sinks import SqliteSink as SqliteSink
    from tidemill.spark.sinks import TopicSink as TopicSink
    from tidemill.spark.windows import group_by as group_by
    from tidemill.spark.windows import hopping as hopping
    from tidemill.spark.windows import sliding as sliding
    from tidemill.spark.windows import tumbling as tumbling

_HOMES = {
    "pipeline": ("Pipeline",),
    "runner": ("RunOptions", "Runner"),
    "session": ("spark_session",),
    "sinks": (
        *("ChangelogSink", "DuckDBSink", "ForeachBatchSink", "ParquetSink"),
        *("PostgresSink", "SqliteSink", "TopicSink"),
    ),
    "windows": ("group_by", "hopping", "sliding", "tumbling"),
    "joins": ("enrich", "enrich_as_of", "join_tables", "stream_stream"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
