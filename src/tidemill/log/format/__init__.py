"""The bytes of a log: record batches, records, compression, checks, transaction markers.

Works on buffers in memory. Opens no files and knows no segments.
"""
