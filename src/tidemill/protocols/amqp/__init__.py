"""AMQP 0-9-1, as RabbitMQ's clients speak it, over ``door.queues``.

- ``codec`` knows the bytes.
- ``server`` listens, ``session`` is one connection, ``handshake`` begins it, and ``channel`` is one
  of its channels: ``topology`` declares, ``publishing`` publishes and confirms, ``consuming``
  delivers and settles.
- ``messages`` maps properties and headers to records and back.
- ``error_codes`` is the only table of AMQP's codes.

This folder knows nothing of logs and offsets: it translates.
"""
