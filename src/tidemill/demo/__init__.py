"""The flights demo: replayer, pipeline and self-check.

Knows Kafka clients and Spark, never the broker's inside: the same demo runs against Apache Kafka.
Nothing here prints; what happens is told to a listener (``progress.Listener``).
"""
