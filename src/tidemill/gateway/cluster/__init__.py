"""The cluster as the console shows it: one snapshot of all topics and groups, and its last hour.

A refresh sends a fixed number of requests to each broker, none of them for a single group or
partition. Must not know: HTTP, pages.
"""
