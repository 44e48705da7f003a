"""Read the topics of streams: typed rows, records as they are, and dead letters."""
