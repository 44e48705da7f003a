"""Messaging without a broker: what works on sockets alone.

Bridges to the log stand on this room, in ``tidemill.connect``. Must not know: a broker, a Kafka
client, the settings file.
"""
