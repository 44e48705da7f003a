"""The journal of a data folder: what was promised before the segments are synced.

``entry`` has the formats, ``ring`` has the files, ``journal`` writes entries and knows which of
them are still needed, and ``reading`` reads them after an unclean stop and gives a partition back
what its segments lack. This folder knows files, offsets and topic ids, and no partitions: their
logs are its opaque owners.
"""
