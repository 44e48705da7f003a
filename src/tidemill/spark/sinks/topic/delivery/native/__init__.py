"""The native edition of delivering rows: Arrow columns to record batches, and an own producer.

``edition`` is its door. ``encoder`` is the Python edition of the compiled ``RecordEncoder``.
"""
