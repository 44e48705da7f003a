"""Share partitions (KIP-932): which records of a partition a share group has finished.

The states of the records are in an acknowledgement window (``state.queues``), as those of queues.
"""
