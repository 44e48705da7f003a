"""Makes ``format("tidemill")`` known to PySpark without any code of the user's.

PySpark imports every package whose name begins with ``pyspark_`` and registers its
``DefaultSource``. The import must be fast and must not need optional packages: if one such package
fails, PySpark registers none of them.
"""

from __future__ import annotations

from tidemill.spark.datasource.data_source import TidemillDataSource as DefaultSource
from tidemill.spark.datasource.data_source import register

__all__ = ["DefaultSource", "register"]
