"""Rows that are read with queries beside the stream: chunks, whole tables, values by key.

``visibility`` opens snapshots that contain what the stream has delivered, ``chunks`` reads from
them, and ``toast`` completes changes whose large values were not sent.

Must not know: the stream, Kafka.
"""
