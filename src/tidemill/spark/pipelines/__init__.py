"""Pipelines: declare streams, tables and queries; check them; run them.

``declared`` is what a user writes, ``check`` reports its mistakes before Spark starts, ``runner``
runs it: ``inputs`` makes DataFrames of the declarations, ``fingerprint`` and ``checkpoint`` decide
whether a query can continue from its checkpoint, ``start`` starts a query, ``supervisor`` restarts
it after failures, and ``status_topic`` publishes how it is doing. Must not know: joins, the command
line.
"""
