"""Open a partition from its folder: after a clean stop (``clean_stop``) or a crash (``recovery``).

``unfinished`` completes interrupted file operations, ``verify`` checks segments, and ``aborted``
restores the indexes of aborted transactions. The result is an ``OpenedPartition``, from which the
store builds the partition's log.
"""
