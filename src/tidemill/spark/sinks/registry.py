"""Finds sinks by name: the built-in ones, and those of other installed packages.

A package offers a sink through an entry point of the group ``tidemill.sinks``. The entry point has
the name of the class, and its value is ``module:class``. This module imports a sink only when it is
asked for it, and must not know: Spark, Kafka clients, databases.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import Sink, is_sink

GROUP = "tidemill.sinks"
"""Group of the entry points."""

BUILT_IN: Mapping[str, str] = {
    "ChangelogSink": "tidemill.spark.sinks.topic.sink:ChangelogSink",
    "DuckDBHistorySink": "tidemill.spark.sinks.history.duckdb:DuckDBHistorySink",
    "DuckDBSink": "tidemill.spark.sinks.database.duckdb:DuckDBSink",
    "ElasticsearchSink": "tidemill.spark.sinks.documents.elasticsearch:ElasticsearchSink",
    "ForeachBatchSink": "tidemill.spark.sinks.foreach_batch:ForeachBatchSink",
    "MySqlSink": "tidemill.spark.sinks.database.mysql:MySqlSink",
    "ParquetSink": "tidemill.spark.sinks.parquet.sink:ParquetSink",
    "PostgresSink": "tidemill.spark.sinks.database.postgres:PostgresSink",
    "RedisSink": "tidemill.spark.sinks.documents.redis:RedisSink",
    "SqliteSink": "tidemill.spark.sinks.database.sqlite:SqliteSink",
    "TantivySink": "tidemill.spark.sinks.documents.tantivy:TantivySink",
    "TopicSink": "tidemill.spark.sinks.topic.sink:TopicSink",
}
"""Name of each built-in sink -> its class."""


def sink_names() -> list[str]:
    """Return the names of all sinks that ``sink`` knows, sorted. Imports none of them."""
    return sorted({*BUILT_IN, *(each.name for each in entry_points(group=GROUP))})


def sink(name: str) -> type[Sink]:
    """Return the class of a sink by its name.

    Args:
        name: A built-in name like ``PostgresSink``, or the entry point of another package.

    Raises:
        PipelineError: The name is unknown, two packages offer it, or the entry point does not lead
            to a sink.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Sink] = getattr(importlib.import_module(module), attribute)
        return found
    offered = list(entry_points(group=GROUP, name=name))
    if not offered:
        raise PipelineError(
            f"unknown sink {name!r}",
            hint=f"Known sinks are {', '.join(sink_names())}. A sink of another package must be "
            f"installed in this environment and have an entry point in the group {GROUP}.",
        )
    if len({each.value for each in offered}) > 1:
        packages = " and ".join(sorted(map(_package, offered)))
        raise PipelineError(
            f"more than one package offers a sink {name!r}: {packages}",
            hint="Uninstall one of them, or import the class that you want.",
        )
    return _load(offered[0])


def _load(entry: EntryPoint) -> type[Sink]:
    origin = f"sink {entry.name!r} of {_package(entry)} ({entry.value})"
    try:
        found = entry.load()
    except Exception as error:
        raise PipelineError(
            f"can't load {origin}: {type(error).__name__}: {error}",
            hint="Reinstall the package, or install what it needs.",
        ) from error
    if not isinstance(found, type) or not is_sink(found):
        raise PipelineError(
            f"{origin} is not a subclass of tidemill.spark.sinks.Sink",
            hint="The entry point must name the class of the sink.",
        )
    return found


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else "an unknown package"
