"""Reads which batches Spark's file sink has completed, from ``_spark_metadata`` in its folder.

It asks Hadoop's file systems, as the file sink does, because the folder may be at any address that
Spark knows (``file:``, ``hdfs:``, ``s3a:``). Must not know: queries, checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.base.explain import spark_message
from tidemill.spark.base.pyspark_private import java_errors, list_folder
from tidemill.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METADATA = "_spark_metadata"
_COMPACTED = ".compact"


def completed_batches(spark: SparkSession, folder: str) -> frozenset[int] | None:
    """Return the numbers of the batches that the folder's metadata lists.

    Spark merges old entries into one file. Of the batches in it, only the last is returned.

    Args:
        folder: The folder as the sink gets it: a path or an address.

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
