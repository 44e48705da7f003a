"""Users, and what they may do: one state machine for all protocols.

``types`` has the values, ``scram`` derives keys from passwords, ``rules`` finds and judges the
rules of an access, ``quotas`` finds the limits of a client, ``permissions`` is AMQP's way to grant
access, ``format`` is the records, and ``machine`` the commands. No I/O, no clock, no protocol.
"""
