"""One module per family of Kafka APIs. A handler decodes, calls the broker, encodes."""
