"""The source: reads Kafka topics for Spark, and imports no Spark itself.

``planning/`` decides which offsets a batch reads, ``cluster`` asks the brokers about topics and
offsets, and ``fetch`` reads a range of offsets into Arrow. ``tidemill.spark.datasource`` is Spark's
side.
"""
