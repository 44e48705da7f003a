"""The brokers of Spark's tests: what reads a topic runs against tidemill and Apache Kafka."""

from tests.spark.conftest import apache_kafka, broker, tidemill_broker

__all__ = ["apache_kafka", "broker", "tidemill_broker"]
