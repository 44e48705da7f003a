"""Change data capture: databases become streams of changes in compacted topics.

``contract`` says what a source is, ``worker`` brings its changes and its position into Kafka in one
transaction, and each database is one module or folder of its own.

Must not know: the broker, the command line, Spark.
"""
