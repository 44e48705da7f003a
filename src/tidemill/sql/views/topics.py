"""The topic of views. Must not know: a client."""

VIEWS = "tidemill.views"
"""Definitions, commands and statuses of all views. Compacted, one partition."""
