"""Copies the folder of a Parquet sink into a few large files.

A compaction in place is not safe. Readers on Spark find the files through ``_spark_metadata``. It
names each file once, in several small logs, to which a running query adds. They can't be replaced
in one step, so a reader in between would see rows twice or not at all. Therefore this module writes
another folder. It must not know: queries, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tidemill.spark.base.explain import spark_message
from tidemill.spark.base.pyspark_private import java_errors
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import Columns, as_columns
from tidemill.spark.sinks.parquet.sink import ParquetSink, completed_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_FILE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactedFolder:
    """The result of a compaction.

    Attributes:
        rows: Number of rows that were copied.
        files_before: Number of files that they were in.
        files: Number of files that they are in now.
    """

    rows: int
    files_before: int
    files: int


def compact_parquet(
    spark: SparkSession,
    source: str | Path,
    target: str | Path,
    *,
    where: str | None = None,
    partition_by: Columns = (),
    file_bytes: int = DEFAULT_FILE_BYTES,
) -> CompactedFolder:
    """Copy the rows of a Parquet sink's folder into large files in a new folder.

    It copies the batches that are finished when it starts. The query may run meanwhile: the source
    is not changed.

    Args:
        spark: The session.
        source: Folder of the sink: a path or an address.
        target: New folder. It must not exist.
        where: Condition in SQL for the rows to copy, for example ``day = DATE'2026-11-20'``.
        partition_by: Columns whose values become folders, as in the sink.
        file_bytes: Size of a file, about.

    Returns:
        The numbers of rows and files.

    Raises:
        PipelineError: The source is not the folder of a Parquet sink, it has no finished batch, the
            target exists or is inside of the source, or the copy does not have all rows.
    """
    source, target = str(source), str(target)
    _check_folders(spark, source, target)
    session = _session_for(spark, file_bytes)
    try:
        rows = session.read.parquet(source)
        rows = rows if where is None else rows.where(where)
        # Both actions see the same files: they were listed when the folder was read.
        count, before = rows.count(), len(rows.inputFiles())
        _write(rows, target, as_columns(partition_by))
        copy = session.read.schema(rows.schema).parquet(target)
        copied, files = copy.count(), len(copy.inputFiles())
    except java_errors() as error:
        raise PipelineError(
            f"folder {source} can't be compacted: {spark_message(str(error))}",
            hint="The source must have a finished batch with rows, and the target must not "
            f"exist. Delete {target} if it is left from an attempt that failed.",
        ) from error
    if copied != count:
        raise PipelineError(
            f"folder {target} has {copied} rows, but {count} were read from {source}",
            hint="Do not use it. Delete it, and try again.",
        )
    return CompactedFolder(count, before, files)


def _check_folders(spark: SparkSession, source: str, target: str) -> None:
    """Check that a sink writes to the source, and that its readers would not see the target."""
    if completed_batches(spark, source) is None:
        raise PipelineError(
            f"folder {source} has no _spark_metadata: no query writes to it with ParquetSink",
            hint="Use the path or the address that the sink has.",
        )
    old = PurePosixPath(str(ParquetSink(source).place))
    new = PurePosixPath(str(ParquetSink(target).place))
    if new == old or old in new.parents:
        raise PipelineError(
            f"folder {target} is inside of {source}", hint="Use a folder beside the source."
        )


def _session_for(spark: SparkSession, file_bytes: int) -> SparkSession:
    """Return a session in which a task reads as many small files as fill a large one."""
    session = spark.newSession()
    session.conf.set("spark.sql.files.maxPartitionBytes", str(file_bytes))
    session.conf.set("spark.sql.files.openCostInBytes", "0")
    session.conf.set("spark.sql.files.minPartitionNum", "1")
    return session


def _write(rows: DataFrame, target: str, columns: tuple[str, ...]) -> None:
    if not columns:
        rows.write.mode("errorifexists").parquet(target)
        return
    # One task for each value, so that the rows of a folder are not spread over many files.
    by_value = rows.repartition(*columns)
    by_value.write.mode("errorifexists").partitionBy(*columns).parquet(target)
