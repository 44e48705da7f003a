"""Pipelines on Spark: latency from a record to its result, and the source and the sink alone.

The contender is plain Structured Streaming with Spark's own Kafka connector, in the same session.
"""
