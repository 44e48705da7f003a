"""Windows of event time: tumbling, sliding, hopping (also with gaps) and session.

``functions`` has the windows for ``groupBy``, ``sql`` those in SQL, ``spec`` what both have in
common. ``check`` knows the output modes that a windowed query may use, and ``late`` counts the
records that arrived too late. Must not know: Kafka clients, pipelines, tables.
"""
