"""Joins of streams and tables.

    stream_stream   two streams, within a bound of event time
    enrich          a stream with a table as it is now
    enrich_as_of    a stream with a table as it was at the time of each event
    join_tables     two tables, as a view that is kept current

A table changes while the stream runs. Each function works with the inputs of a pipeline; outside
of a pipeline, ``changelog_table`` makes a table of a topic. Must not know: runs, sinks.
"""
