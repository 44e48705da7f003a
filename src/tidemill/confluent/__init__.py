"""Producers and readers on confluent-kafka, with typed errors.

confluent-kafka is the client for everything that it does well; ``kafka_client`` is for what needs
Arrow's speed, and for the APIs that librdkafka lacks. Must not know: Spark, connectors, commands.
"""
