"""Windows of event time: tumbling, sliding, hopping (also with gaps) and session.

``functions`` has the windows for ``groupBy``, ``sql`` those in SQL, ``spec`` what both have in
common. ``check`` knows the output modes that a windowed query may use, ``late`` counts the records
that arrived too late, and ``join_state`` knows which joins are bound to event times. Must not know:
Kafka clients, pipelines, tables.
"""
