"""tidemill: durable partitioned logs behind the Kafka protocol, and Spark pipelines over them."""

__version__ = "0.1.0"
