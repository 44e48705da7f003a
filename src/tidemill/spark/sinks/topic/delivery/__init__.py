"""Sends Arrow rows to Kafka brokers: at least once, or exactly once in a transaction.

Knows no Spark: native code is to replace it. ``tests/contracts/deliver.py`` is its contract.
"""
