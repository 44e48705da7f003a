"""Share groups at work (KIP-932): what members acquire, acknowledge and return.

``shares`` is what clients ask for, ``core`` has the share partitions, ``fetch`` acquires records
from logs, and ``share_log`` stores what changed.
"""
