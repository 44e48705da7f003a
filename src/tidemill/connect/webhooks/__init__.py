"""Webhooks that go out: a topic is delivered to an HTTP endpoint.

``endpoint`` decides what is sent and when, without I/O; ``runner`` sends it, and ``intake`` reads
the topic and commits positions. Must not know: the broker, the command line, Spark.
"""
