"""Bridges: what comes from direct messaging into topics, and what goes out of topics.

A bridge is one class in one file behind the contract in ``contract``. It reaches data through a
Kafka client only.
"""
