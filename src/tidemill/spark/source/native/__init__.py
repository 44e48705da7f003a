"""Reads ranges with a Kafka client of its own, and C code that decodes stored batches to Arrow."""
