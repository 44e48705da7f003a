"""The log of one partition.

``partition.PartitionLog`` is composed of parts, and each part receives only what it needs:

- ``chain``: the segments.
- ``append``: add batches at the end, and decide when to start a new segment; ``refused``
  keeps the order after a refused batch.
- ``sync``: what is synced, and the next sync.
- ``recovery_point``: the offset from which recovery reads, with its snapshots of producers.
- ``producers``: the state of producers; ``lazy_producers`` loads it, ``snapshots`` stores it
  and rebuilds it from batches, ``transactions`` follows open and aborted transactions.
- ``reading``: find bytes and timestamps for readers.
- ``retention``: remove old segments.
"""
