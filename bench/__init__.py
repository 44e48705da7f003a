"""Benchmarks of tidemill, as ratios to a raw baseline and to Apache Kafka in the same run.

See ``python -m bench --help`` and ``docs/performance.md``.
"""
