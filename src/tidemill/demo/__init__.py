"""The flights demo: replayer, pipeline and self-check."""
