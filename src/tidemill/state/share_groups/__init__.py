"""Share groups (KIP-932): members, epochs and assignments.

``machine.ShareGroups`` is the state machine. What members have acquired and acknowledged is in
``state.share_partitions``.
"""
