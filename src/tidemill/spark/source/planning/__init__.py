"""Decides which offsets each batch of a query reads. Knows no Kafka client, no Arrow and no Spark.

``options`` parses the options of the source, ``planner`` plans batches, ``ranges`` is the
arithmetic of offsets, and ``topics`` is what planning must know of a cluster.
"""
