"""Server-side assignors: which member of a group reads which partitions.

Pure functions of members and topics, for any kind of group that the broker assigns (KIP-848).
"""
