"""Records in and out: append, read with long polls, find positions, delete a prefix.

``records.Records`` is the part that protocols see: it checks access and calls ``append``,
``plain``, ``read`` and ``positions``. These share ``partitions``, which finds the log of a
partition. Nothing here knows groups, transactions or a protocol.
"""
