"""Consumer groups and committed offsets.

``coordinator`` drives the state machines of ``state.groups`` and ``state.offsets`` over one
state log, ``groups`` has the requests that also need the catalog or share groups.

Membership follows Kafka's classic group protocol (KIP-62, KIP-345) and its consumer group protocol
(KIP-848). It is here and not in
``protocols.kafka`` because members and committed offsets share one state log and one order of
records: a commit is checked against the generation of the group, the offsets of a deleted group go
with it, and a transaction's marker commits offsets in the same log.
"""
