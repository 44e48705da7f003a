"""The part of the client that writes: record batches, requests under way, transactions.

``producer`` sends records, and ``transactional`` sends them in transactions. ``RecordEncoder`` of
the extension encodes them.
"""
