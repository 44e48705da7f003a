"""The topic of views, and its commands. Must not know: a client."""

VIEWS = "tidemill.views"
"""Definitions, commands and statuses of all views. Compacted, one partition."""

REBUILD = "rebuild"
"""The command to make a view again from what its topics have: its columns are sampled again."""
