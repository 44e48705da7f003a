"""Topics as Arrow record batches: one range of offsets at a time, as fast as it can be read.

Spark's source and SQL on topics use it. Must not know: Spark, SQL, options' names.
"""
