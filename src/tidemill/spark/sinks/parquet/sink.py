"""A sink that writes Parquet files with Spark's own file sink.

Spark's file sink skips a batch whose number is in its metadata. So the folder must belong to the
checkpoint, and ``check_result`` compares the two. Must not know: other sinks, Kafka clients.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tidemill.spark.base.explain import spark_message
from tidemill.spark.base.pyspark_private import java_errors, list_folder
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks.base import CheckpointState, Columns, Run, Sink, Writer, as_columns
from tidemill.spark.sinks.batch_identity import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_METADATA = "_spark_metadata"
_COMPACTED = ".compact"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # like s3a://bucket/folder


@dataclass(frozen=True)
class ParquetSink(Sink):
    """Writes Parquet files. Exactly once for readers that use Spark, by its ``_spark_metadata``.

    Attributes:
        path: Folder of the files: a path or an address.
        partition_by: Columns whose values become folders.
    """

    path: str | Path
    partition_by: Columns = ()

    modes: ClassVar[tuple[str, ...]] = ("append",)

    @property
    def target(self) -> str:
        return f"folder {self.path}"

    @property
    def place(self) -> Hashable:
        path = local_path(str(self.path))
        return path.rstrip("/") if _ADDRESS.match(path) else Path(path).resolve()

    @property
    def key_columns(self) -> tuple[str, ...]:
        return as_columns(self.partition_by)

    def check_result(self, df: DataFrame, checkpoint: CheckpointState) -> None:

        super().check_result(df, checkpoint)
        completed = completed_batches(df.sparkSession, str(self.path))
        if checkpoint.is_fresh and completed:
            raise PipelineError(
                f"{self.target} contains batches of another checkpoint: Spark counts batches from "
                "0 again and would skip those whose number is in the folder",
                hint="Use a new folder, or delete this one.",
            )
        last = checkpoint.last_batch
        if completed and last is not None and max(completed) > last:
            raise PipelineError(
                f"{self.target} contains batch {max(completed)}, but the last batch that the "
                f"checkpoint planned is {last}: the checkpoint was restored from a backup, or "
                "copied, and Spark would skip the next batches",
                hint=f"Start again with a new folder and a new checkpoint: {checkpoint.reset}",
            )
        # A query creates the metadata folder, if only an empty one, before its first batch.
        if not checkpoint.is_fresh and completed is None:
            raise PipelineError(
                f"{self.target} contains none of the batches that the checkpoint has started: "
                "readers could not find what is written next",
                hint="Use the folder that contains them, restore it, or start again with a new "
                f"checkpoint: {checkpoint.reset}",
            )

    def open(self, run: Run) -> Writer:
        return _FileWriter(self)


class _FileWriter(Writer):
    """Writes through Spark's file sink."""

    def __init__(self, sink: ParquetSink) -> None:
        self._sink = sink

    def stream(self, df: DataFrame) -> DataStreamWriter:
        writer = df.writeStream.format("parquet").option("path", str(self._sink.path))
        columns = as_columns(self._sink.partition_by)
        return writer.partitionBy(*columns) if columns else writer


def completed_batches(spark: SparkSession, folder: str) -> frozenset[int] | None:
    """Return the numbers of the batches that the folder's metadata lists.

    Spark merges old entries into one file. Of the batches in it, only the last is returned.

    Returns:
        The numbers, or None if no query was ever started that writes to the folder.
    """
    try:
        names = list_folder(spark, folder, _METADATA)
    except java_errors() as error:
        cause = getattr(error, "java_exception", None)
        text = str(error) if cause is None else cause.toString()
        raise PipelineError(
            f"can't read folder {folder}: {spark_message(text)}",
            hint="Use a path, or an address of a file system that Spark has the jars for.",
        ) from error
    if names is None:
        return None
    numbers = (name.removesuffix(_COMPACTED) for name in names)
    return frozenset(int(number) for number in numbers if number.isdecimal())
