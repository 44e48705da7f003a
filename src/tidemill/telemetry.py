"""Logging: one structured line per event, to stderr. Knows nothing else of tidemill."""
