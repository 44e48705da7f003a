"""The Kafka protocol: bytes to broker calls and back, nothing else."""
