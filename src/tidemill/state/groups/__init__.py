"""Consumer groups with the classic protocol: members, rebalances, generations.

``machine.Groups`` is the state machine. ``group.TRANSITIONS`` lists the valid states of a group.
"""
