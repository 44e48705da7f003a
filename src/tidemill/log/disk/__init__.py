"""Files on disk: the file system interface, open handles, segments and their indexes.

Knows the formats of batches and files. Does not know partitions as a whole, producers or configs.
"""
