"""Webhooks that come in: verified, stored in a topic once, and answered when they are durable.

``settings`` declares hooks, ``verifiers`` checks signatures, ``mapping`` and ``cloudevents`` make
records, ``writer`` stores them, and ``app`` answers requests. Must not know: the topics API.
"""
