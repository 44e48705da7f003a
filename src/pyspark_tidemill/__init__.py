"""Makes ``format("tidemill")`` known to PySpark without a line of the user's code.

PySpark imports every package named ``pyspark_*`` and registers its ``DefaultSource``. It must
import quickly and without anything optional: one such package that fails disables them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.spark.source import TidemillDataSource as DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the data source in a session by hand.

    For sessions where PySpark's own discovery is off, or spoilt by another package.
    """
    spark.dataSource.register(DefaultSource)
