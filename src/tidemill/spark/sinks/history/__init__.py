"""Sinks that keep every version of a row: slowly changing dimensions of type 2.

Must not know: other sinks except the tables that they build on, Kafka clients, how pipelines run.
"""
