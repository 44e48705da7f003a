"""The binary log of MariaDB and MySQL: events, table maps and rows, from bytes to Python values.

Must not know the worker, Kafka or where positions are stored.
"""
