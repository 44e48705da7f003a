"""Compaction: rewrite closed segments so that the last record of each key is kept.

``run`` decides what can be compacted and drives it, ``cleaning`` has the rules for records, and
``swap`` replaces the files.
"""
