"""The broker's metrics: what the parts of the engine know, computed when a scrape asks for it.

``logs`` has topics, disk and syncs, ``groups`` has lag, share groups and transactions, and
``queues`` has queues. Nothing is counted here while clients are served.
"""
