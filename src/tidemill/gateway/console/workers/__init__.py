"""Pages of what works beside the broker: pipelines, sources, bridges, webhooks, event stores.

All of them show what workers publish in topics, so they also work in front of Apache Kafka.
``graph`` lays out what a pipeline reads and writes. Must not know: HTML, how a worker works.
"""
