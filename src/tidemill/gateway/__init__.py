"""HTTP in a process of its own: topics, and webhooks that come in.

It reaches data through a Kafka client only, so it runs in front of any Kafka-compatible cluster.
Must not know: the broker's inside, Spark, commands.
"""
