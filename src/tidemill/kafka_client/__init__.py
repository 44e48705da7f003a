"""A small Kafka client over sockets, for what librdkafka can't do, or not fast enough.

It has settings, connections with TLS and SASL, and leaders of partitions. ``producing`` writes
record batches, alone and in transactions, and ``fetching`` reads them: for Spark's source and topic
sink, and for connectors. ``admin`` asks brokers, for commands and the console.
Must not know: Spark, connectors, the broker's inside.
"""
