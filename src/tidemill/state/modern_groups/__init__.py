"""The common parts of consumer groups (KIP-848) and share groups (KIP-932).

The broker assigns the partitions of both. A group has an epoch, a target assignment, and for each
member what it asked for and what it has. Apache Kafka calls them modern groups, too.
"""
