"""Handlers of Kafka requests, one module per family of APIs.

A handler reads a decoded request, calls the engine through its door, and returns a response tree.
It takes no decision: what is allowed and what happens is up to the engine.
"""
