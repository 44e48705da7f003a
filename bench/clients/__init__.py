"""Measures servers with load generators that are not ours.

They are programs of librdkafka (confluent-kafka) and Apache Kafka's own perf tools. Every section
compares tidemill with Apache Kafka, by default and with ``flush.messages=1``, in turns.
"""
