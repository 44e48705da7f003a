"""Compaction: rewrite closed segments so that the last record of each key is kept.

``due`` decides what can be compacted, ``run`` drives it, ``cleaning`` has the rules for records,
and ``swap`` replaces the files.
"""
