"""Sinks that upsert rows into a database's table by key.

``sink`` is their common base, ``rows`` and ``version`` prepare a batch, ``upsert`` is the SQL that
all databases share, and each database is one file. They import neither Spark nor a Kafka client.
"""
