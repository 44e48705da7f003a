"""The topics of bridges. Must not know: a client."""

BRIDGES = "tidemill.bridges"
"""Definitions, commands and statuses of all bridges. Compacted, one partition."""
