"""``tidemill queue``: queues over AMQP.

``commands`` creates, lists, describes, binds and deletes queues; ``messages`` publishes, consumes
and moves messages. ``client`` is a small blocking client, ``view`` prints, and ``options`` has what
several commands share.
"""
