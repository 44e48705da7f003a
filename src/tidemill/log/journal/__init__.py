"""The journal of a data folder: what was promised before the segments are synced.

``entry``, ``checkpoint`` and ``extent`` have the formats, ``ring`` has the files, and ``journal``
writes entries and knows which of them are still needed. After an unclean stop ``reading`` reads
them, ``correction`` corrects a changed bit, and ``restoring`` gives a partition back what its
segments lack. This folder knows files, offsets and topic ids, and no partitions: their logs are its
opaque owners.
"""
