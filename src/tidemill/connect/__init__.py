"""Connectors: bring data in and take data out, through a Kafka client.

Must not know: the engine, the state machines or the log.
"""
