"""The state machines of the broker: topics, consumer groups, committed offsets, transactions.

Each machine is pure: a command takes a request and the time, and returns the records to write and
the replies to send. ``outcome`` describes how the engine drives a machine. Rooms:

- ``catalog``: topics with their configs, the broker's configs, producer ids
- ``groups``: consumer groups and their rebalances
- ``offsets``: committed offsets, also those of open transactions
- ``transactions``: transactional ids and their transactions

This package must not know a socket, a clock, a disk or a protocol.
"""
