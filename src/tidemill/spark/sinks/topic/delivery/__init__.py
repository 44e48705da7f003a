"""Sends Arrow rows to Kafka brokers: at least once, or exactly once in a transaction.

``at_least_once`` and ``exactly_once`` are its doors. Each has two editions: ``own`` with our own
producer, and ``librdkafka`` for settings that ours does not understand. Knows no Spark.
``tests/contracts/deliver.py`` is its contract.
"""
