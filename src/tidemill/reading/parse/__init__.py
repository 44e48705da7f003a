"""Values of records as typed Arrow columns: JSON objects, parsed by the C code.

Must not know: Spark, SQL, Kafka clients, texts of schemas.
"""

ISO = "iso"
TIMESTAMP_FORMATS = (ISO, "epoch_s", "epoch_ms", "epoch_us")
"""What a number in a TIMESTAMP column means. With ``iso`` it is refused."""
