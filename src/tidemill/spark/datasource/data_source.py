"""The data source ``tidemill``: Kafka topics as a table or a stream, to read and to write.

``source.planning`` decides what is read when, ``source.fetch`` reads it, and
``sinks.topic.delivery`` writes. PySpark imports this module in every program (see
``pyspark_tidemill``), so it imports heavy and optional packages only where it uses them. Must not
know: pipelines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from tidemill.spark.datasource.columns import columns_of, reading_of
from tidemill.spark.datasource.readers import BatchReader, StreamReader
from tidemill.spark.errors import OptionError
from tidemill.spark.sinks.topic.options import parse_sink_options
from tidemill.spark.source.planning.options import (
    check_batch_options,
    check_stream_options,
    parse_source_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "tidemill"
SET_BY_EACH_QUERY = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Variables for the Python process of a stream that Spark's source runner sets at each start."""


class TidemillDataSource(DataSource):
    """Kafka topics for ``spark.read``, ``readStream``, ``write`` and ``writeStream``.

    Use it with ``format("tidemill")``. Options and columns are those of Spark's Kafka connector.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns if ``.schema()`` was not called.

        They are those of Spark's Kafka source; ``headers`` only with ``includeHeaders``. With
        ``value.format`` they are those of ``value.schema``; with ``rows=refused`` those of the
        source and the reason.

        Raises:
            OptionError: An option is invalid or missing. Spark calls this method first, in
                ``load()``, so the user sees the error before a query runs.
        """
        return columns_of(parse_source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        options = parse_source_options(self.options)
        check_batch_options(options)
        return BatchReader(reading_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader for ``spark.readStream``."""
        options = parse_source_options(self.options)
        check_stream_options(options)
        return StreamReader(reading_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer for ``df.write`` in mode ``append``."""
        from tidemill.spark.datasource.writers import TopicWriter

        if overwrite:
            raise OptionError("mode overwrite is not supported", hint='Use mode("append").')
        return TopicWriter(schema, parse_sink_options(self.options))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the writer for ``df.writeStream``. Mode ``complete`` appends the whole result."""
        from tidemill.spark.datasource.writers import TopicStreamWriter

        return TopicStreamWriter(schema, parse_sink_options(self.options))


def register(spark: SparkSession) -> None:
    """Register the data source ``tidemill`` in a session.

    PySpark registers it by itself, unless its discovery of data sources is switched off or fails:
    because of another package, or because ``python3`` on PATH is not the Python of this program. A
    local session runs its Python workers with the Python of this program from now on.
    """
    from tidemill.spark.base.session import use_this_python_in

    use_this_python_in(spark)
    # All queries share one map of variables: that of the registered class. A query that starts adds
    # these names to it, while another one may be sending the map to its tasks, which then can't
    # read it (OptionalDataException). Names that are in the map already change nothing in its
    # structure; each start overwrites the values.
    for name, value in SET_BY_EACH_QUERY.items():
        spark.sparkContext.environment.setdefault(name, value)
    spark.dataSource.register(TidemillDataSource)
