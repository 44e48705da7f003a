"""The topic sinks: rows as records of Kafka topics.

``sink`` has the two classes, ``records`` turns rows into records, ``batches`` writes one batch, and
``delivery/`` sends records to the brokers. Spark's side of the writing is in
``tidemill.spark.datasource``.
"""
