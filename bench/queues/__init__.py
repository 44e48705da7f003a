"""Queues over AMQP beside RabbitMQ, with RabbitMQ's own load generator (PerfTest)."""
