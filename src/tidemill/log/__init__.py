"""The log: partitions as files on disk, in the formats of Apache Kafka.

The rooms, from top to bottom; each imports only the ones below it:

- ``store``: the data folder with all partitions; ``offset_checkpoints`` writes its checkpoints.
- ``recovery``: open a partition, after a clean stop or after a crash.
- ``compaction``: keep the last record of each key.
- ``partition``: the log of one partition, composed of its parts.
- ``disk``: files, segments and indexes.
- ``format``: record batches, records, compression, transaction markers.
- ``config``: the configs of topics.

The log is synchronous: no asyncio, no sockets, no wall clock, no Kafka protocol.

What uses the disk can raise StorageError, DiskFullError or CorruptLogError, and SyncFailedError if
the broker must stop. The docstrings of what the engine calls say when, and what has changed then;
the inner rooms name these errors only where their caller must know more.
"""
