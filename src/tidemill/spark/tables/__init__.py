"""Sources of tables, and the one that comes with tidemill: a changelog topic.

``source`` is the contract of a source; a source is one class in one file. ``changelog`` reads a
table from a topic: ``changes`` and ``rows`` say which record of a key counts, ``cache`` keeps a
table in the memory of a Python worker, ``lookup`` finds rows there, and ``parsing`` makes Spark's
columns of them. Must not know: pipelines, joins, sinks.
"""
