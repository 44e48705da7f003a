"""Share groups at work (KIP-932): what members acquire, acknowledge and return.

``shares`` is the part of the door, ``core`` has the share partitions, ``fetch`` acquires records
from logs, and ``journal`` stores what changed.
"""
