"""The parts that connectors share: Kafka clients, a transactional producer, topics, secrets.

Must not know: a connector.
"""
