"""The compiled extension (sources in ``src/native``)."""
