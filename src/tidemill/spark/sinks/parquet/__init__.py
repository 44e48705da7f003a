"""The Parquet sink: Spark's own file sink, with a check that folder and checkpoint match."""
