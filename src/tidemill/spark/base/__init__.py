"""The ground floor of the Spark side: what source, sinks and pipelines share.

``java`` finds a Java, ``jvm`` and ``jvm_command`` start Spark's JVM on it, ``session`` creates a
session, and ``pyspark_private`` gathers all private names of PySpark. ``options`` are the options
of source and sink, ``clients`` are Kafka clients, ``ddl`` reads schemas, and ``explain`` turns
Spark's errors into messages for users.
"""
