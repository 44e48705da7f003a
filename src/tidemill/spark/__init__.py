"""Pipelines on Apache Spark, through PySpark.

All public names can be imported from here::

    from tidemill.spark import Pipeline, TopicSink, tumbling

A name is loaded when it is first used, so declaring a pipeline needs no Spark. Names that are not
listed below may come from other packages: a sink that is named in the entry point group
``tidemill.sinks``, or a source of tables in ``tidemill.table_sources``.

This package reaches data through Kafka clients. It must not know: the inside of the broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.spark.datasource.session import spark_session as spark_session
    from tidemill.spark.joins.enrich import enrich as enrich
    from tidemill.spark.joins.enrich import enrich_as_of as enrich_as_of
    from tidemill.spark.joins.streams import stream_stream as stream_stream
    from tidemill.spark.joins.views import join_tables as join_tables
    from tidemill.spark.pipelines.declared import Pipeline as Pipeline
    from tidemill.spark.pipelines.inputs import changelog_table as changelog_table
    from tidemill.spark.pipelines.runner import Runner as Runner
    from tidemill.spark.pipelines.runner import RunOptions as RunOptions
    from tidemill.spark.sinks.base import Mistake as Mistake
    from tidemill.spark.sinks.base import Sink as Sink
    from tidemill.spark.sinks.base import SinkTopic as SinkTopic
    from tidemill.spark.sinks.base import Writer as Writer
    from tidemill.spark.sinks.database.duckdb import DuckDBSink as DuckDBSink
    from tidemill.spark.sinks.database.mysql import MySqlSink as MySqlSink
    from tidemill.spark.sinks.database.postgres import PostgresSink as PostgresSink
    from tidemill.spark.sinks.database.sqlite import SqliteSink as SqliteSink
    from tidemill.spark.sinks.documents.elasticsearch import ElasticsearchSink as ElasticsearchSink
    from tidemill.spark.sinks.documents.redis import RedisSink as RedisSink
    from tidemill.spark.sinks.documents.tantivy import TantivySink as TantivySink
    from tidemill.spark.sinks.foreach_batch import ForeachBatchSink as ForeachBatchSink
    from tidemill.spark.sinks.history.duckdb import DuckDBHistorySink as DuckDBHistorySink
    from tidemill.spark.sinks.parquet.compaction import CompactedFolder as CompactedFolder
    from tidemill.spark.sinks.parquet.compaction import compact_parquet as compact_parquet
    from tidemill.spark.sinks.parquet.sink import ParquetSink as ParquetSink
    from tidemill.spark.sinks.registry import sink as sink
    from tidemill.spark.sinks.topic.batches import write_batch as write_batch
    from tidemill.spark.sinks.topic.sink import ChangelogSink as ChangelogSink
    from tidemill.spark.sinks.topic.sink import TopicSink as TopicSink
    from tidemill.spark.tables.captured import CapturedTopic as CapturedTopic
    from tidemill.spark.tables.changelog import ChangelogTopic as ChangelogTopic
    from tidemill.spark.tables.source import TableContext as TableContext
    from tidemill.spark.tables.source import TableSource as TableSource
    from tidemill.spark.windows.check import check_query as check_query
    from tidemill.spark.windows.check import check_window as check_window
    from tidemill.spark.windows.functions import group_by as group_by
    from tidemill.spark.windows.functions import hopping as hopping
    from tidemill.spark.windows.functions import session as session
    from tidemill.spark.windows.functions import sliding as sliding
    from tidemill.spark.windows.functions import tumbling as tumbling
    from tidemill.spark.windows.late import LateRecords as LateRecords
    from tidemill.spark.windows.late import late_records as late_records
    from tidemill.spark.windows.sql import sql as sql

_MODULES = {
    "datasource.session": ("spark_session",),
    "joins.enrich": ("enrich", "enrich_as_of"),
    "joins.streams": ("stream_stream",),
    "joins.views": ("join_tables",),
    "pipelines.declared": ("Pipeline",),
    "pipelines.inputs": ("changelog_table",),
    "pipelines.runner": ("RunOptions", "Runner"),
    "sinks.database.duckdb": ("DuckDBSink",),
    "sinks.database.mysql": ("MySqlSink",),
    "sinks.database.postgres": ("PostgresSink",),
    "sinks.database.sqlite": ("SqliteSink",),
    "sinks.documents.elasticsearch": ("ElasticsearchSink",),
    "sinks.documents.redis": ("RedisSink",),
    "sinks.documents.tantivy": ("TantivySink",),
    "sinks.foreach_batch": ("ForeachBatchSink",),
    "sinks.history.duckdb": ("DuckDBHistorySink",),
    "sinks.parquet.compaction": ("CompactedFolder", "compact_parquet"),
    "sinks.parquet.sink": ("ParquetSink",),
    "sinks.topic.batches": ("write_batch",),
    "sinks.topic.sink": ("ChangelogSink", "TopicSink"),
    "sinks.base": ("Mistake", "Sink", "SinkTopic", "Writer"),
    "sinks.registry": ("sink",),
    "tables.captured": ("CapturedTopic",),
    "tables.changelog": ("ChangelogTopic",),
    "tables.source": ("TableContext", "TableSource"),
    "windows.check": ("check_query", "check_window"),
    "windows.functions": ("group_by", "hopping", "session", "sliding", "tumbling"),
    "windows.late": ("LateRecords", "late_records"),
    "windows.sql": ("sql",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_ENTRY_POINTS = ("tidemill.sinks", "tidemill.table_sources")

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is not None:
        try:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
        except ImportError as error:
            raise _explained(error) from error
    if name[:1].isupper():  # entry points name classes; importing a module must stay fast
        from importlib.metadata import entry_points  # takes longer than all else here

        for group in _ENTRY_POINTS:
            for each in entry_points(group=group, name=name):
                return each.load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _explained(error: ImportError) -> ImportError:
    """Return an error that says how to install the package, if one of an extra is missing."""
    from tidemill import extras
    from tidemill.spark.errors import MissingPackageError

    extra = extras.extra_of(error.name)
    problem = None if extra is None else extras.problem_of(extra)
    if problem is None:
        return error
    return MissingPackageError(problem[0], hint=problem[1])


def __dir__() -> list[str]:
    return [*globals(), *__all__]
