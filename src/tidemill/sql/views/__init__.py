"""Materialized views: queries over topics, kept current in files of DuckDB by a worker.

The rows and the offsets of what they are made of are committed together. Must not know: commands.
"""
