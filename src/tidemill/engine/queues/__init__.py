"""Queues: exchanges route messages to logs, and an acknowledgement machine delivers them.

A queue is a topic and an acknowledgement window (``state.queues``). ``api`` and ``errors`` are what
protocols import; ``queues`` is what clients ask for. Knows no protocol.
"""
