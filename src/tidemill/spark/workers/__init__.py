"""Starts Spark's Python processes as forks of one process that has imported what they need.

Spark runs the interpreter for each kind of Python worker, and once more for each streaming query.
Each of them imports for a quarter of a second to a second of processor time. Here, Spark runs
``launcher.sh`` instead of the interpreter. It runs ``handoff``, which passes the request to the
process ``fork_server`` of the same program; ``server`` starts that process. Without a server,
``handoff`` runs the interpreter as Spark wanted. Must not know: sessions, options, Kafka.
"""
