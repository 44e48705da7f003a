"""A Spark session in which ``format("tidemill")`` works. Must not know: pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.spark.base.session import create_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_session(
    app_name: str,
    *,
    master: str = "local[2]",
    extra: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> SparkSession:
    """Return a Spark session in which ``format("tidemill")`` works.

    Starts a JVM if this process has none. A session that already exists is returned, with the
    settings in ``extra`` that Spark can change at run time.

    Args:
        app_name: Name that Spark shows.
        master: Spark's master URL.
        extra: Spark settings. They take precedence over tidemill's defaults.
        log_file: File for the output of the JVM and its Python workers; default: stderr. It has an
            effect only when the JVM is started.

    Returns:
        The session. Stop it as usual; the JVM ends with this process.

    Raises:
        MissingPackageError: A package of the extra spark is missing.
        JavaNotFoundError: There is no Java 17 or newer.
        JvmStartError: The JVM did not start.
    """
    spark = create_session(app_name, master, dict(extra or {}), log_file)
    # Not earlier: it imports PySpark, and create_session says so if that is missing.
    from tidemill.spark.datasource.data_source import register

    register(spark)
    return spark
