"""Read the records of captured tables: Debezium's envelope, its values and its positions.

``envelope`` turns a record into an event, ``values`` converts the values of a row, ``positions``
compares where in the database's log two changes are. Must not know: Spark, Kafka clients, Arrow.
"""
