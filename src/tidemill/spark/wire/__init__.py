"""A small Kafka client over sockets, for the native editions of the source and of the topic sink.

It has what both need: settings, connections with TLS and SASL, leaders of partitions. Reading is in
``tidemill.spark.source.native``, writing in ``tidemill.spark.sinks.topic.delivery.native``.
"""
