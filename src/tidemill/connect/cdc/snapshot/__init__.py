"""Snapshots beside the stream: the watermark method, the queue of tables, the keys of a topic.

Must not know: a particular database.
"""
