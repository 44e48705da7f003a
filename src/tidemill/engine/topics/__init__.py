"""Topics, configs and producer ids.

``topics.Topics`` and ``configs.Configs`` are the parts that protocols see. ``admin`` changes topics
and their folders, ``folders`` creates, deletes and matches folders, and ``catalog_journal`` writes
the catalog. Nothing here knows records of clients or groups.
"""
