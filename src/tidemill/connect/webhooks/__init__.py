"""Webhooks: deliver the records of a topic to endpoints, signed as Standard Webhooks describes.

Must not know: the engine, the gateway.
"""
