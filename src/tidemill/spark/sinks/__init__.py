"""Sinks: where pipelines write their results.

``base`` is the contract: a sink is one class that declares its options, checks them and opens a
writer. Each connector is one class in one file: ``topic/`` writes records to Kafka topics,
``database/`` upserts rows into tables, ``parquet/`` writes files and ``foreach_batch`` calls a
function. ``registry`` finds sinks by name, also those of other packages. ``docs/extending.md``
shows how to add one.
"""
