"""A small Kafka client over sockets, for what needs more speed than librdkafka gives.

It has settings, connections with TLS and SASL, and leaders of partitions. ``producing`` writes
record batches, alone and in transactions. Spark's source and topic sink use it, and connectors do.
Must not know: Spark, connectors, the broker's inside.
"""
