"""The part of the client that writes: record batches, requests under way, transactions.

``encoder`` is the Python edition of the compiled ``RecordEncoder``.
"""
