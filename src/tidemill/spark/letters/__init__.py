"""Writes the dead letters of a stream without a query of Spark.

``records`` makes dead letters of refused records, ``log`` keeps the position in the files of a
Spark checkpoint, and ``query`` reads the topic and delivers the letters. A query of Spark for the
dead letters of a stream costs a planning process, a micro-batch and a job for each of its batches,
although it rarely has a row. Must not know: pipelines, sessions, Spark.
"""
