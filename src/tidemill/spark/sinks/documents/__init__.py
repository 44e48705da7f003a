"""Sinks that keep a document for each key: hashes in Redis, search indexes.

``store`` is what they share: versions, checks and the texts of values. Each store is one class in
one file. Must not know: other sinks, Kafka clients, how pipelines run.
"""
