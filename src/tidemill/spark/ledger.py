"""What Spark's file sink notes in its folder: which batches are there whole.

Asks through Hadoop's file systems, as the sink does itself: a folder may be an address of any that
Spark knows (``file:``, ``hdfs:``, ``s3a:``). Must not know: queries, checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.errors import PipelineError
from tidemill.spark.explain import told_by_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEDGER = "_spark_metadata"
_COMPACTED = ".compact"


def batches_in(spark: SparkSession, folder: str) -> frozenset[int] | None:
    """Numbers of the batches that are noted in a folder.

    Of those that Spark has put together in one file only the last is named.

    Args:
        folder: as the sink gets it: a path, or an address.

    Returns:
        None if no query has ever been started that writes there.

    Raises:
        PipelineError: the folder can't be looked at.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        names = _names(spark, folder)
    except (Py4JJavaError, PySparkException) as error:
        cause = getattr(error, "java_exception", None)
        told = str(error) if cause is None else cause.toString()
        raise PipelineError(
            f"folder {folder} can't be looked at: {told_by_spark(told)}",
            hint="Is it a path, or an address of a file system that Spark has the jars for?",
        ) from error
    if names is None:
        return None
    numbers = (name.removesuffix(_COMPACTED) for name in names)
    return frozenset(int(number) for number in numbers if number.isdecimal())


def _names(spark: SparkSession, folder: str) -> list[str] | None:
    session: Any = spark
    path = session._jvm.org.apache.hadoop.fs.Path(folder)
    ledger = session._jvm.org.apache.hadoop.fs.Path(path, _LEDGER)
    system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    if not system.exists(ledger):
        return None
    return [each.getPath().getName() for each in system.listStatus(ledger)]
