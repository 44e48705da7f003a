"""Apache Spark through PySpark. Knows Kafka clients, never the broker's inside."""
