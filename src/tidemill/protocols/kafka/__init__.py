"""The Kafka protocol: bytes become calls of the engine, and results become bytes. Nothing else."""
