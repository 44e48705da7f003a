"""Event sourcing: an append-only store of events per aggregate, kept in a log.

A log is a total order, and a total order is enough for compare-and-set. An append is a *commit*,
proposed as one record. Every process that uses the store reads the log and folds it with the same
pure function, so all agree which commits are accepted and which are void. Works through a Kafka
client alone. Must not know: the broker's inside, Spark, commands.
"""
