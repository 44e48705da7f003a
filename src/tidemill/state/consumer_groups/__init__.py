"""Consumer groups that the broker assigns (KIP-848): members, epochs, reconciliation.

``machine.ConsumerGroups`` is the state machine. Members with the classic protocol can be in such a
group too; ``migration`` turns a classic group into one, and back.
"""
