"""Topics, configs and producer ids.

``admin`` changes topics, their folders and configs, ``folders`` creates, deletes and matches
folders, and ``catalog_journal`` writes the catalog. Nothing here knows records of clients or
groups.
"""
