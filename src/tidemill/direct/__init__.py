"""Messaging without a broker: what works on sockets alone.

Bridges to the log are in ``tidemill.connect`` and use this room. Must not know: a broker, a Kafka
client, the settings file.
"""
