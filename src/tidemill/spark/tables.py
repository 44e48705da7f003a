"""Changelog topics as tables: the last value of each key counts, and null deletes it.

Must not know: pipelines, sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.spark.window_spec import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(
    spark: SparkSession, topic: str, schema: str, key: Sequence[str], kafka: Mapping[str, str]
) -> DataFrame:
    """The table as it is now."""
    raise NotImplementedError


def read_versions(
    spark: SparkSession,
    topic: str,
    schema: str,
    key: Sequence[str],
    kafka: Mapping[str, str],
    *,
    keep: Duration,
) -> DataFrame:
    """All versions that are kept."""
    raise NotImplementedError


def read_changes(
    spark: SparkSession, topic: str, schema: str, key: Sequence[str], kafka: Mapping[str, str]
) -> DataFrame:
    """The changelog as a stream."""
    raise NotImplementedError
