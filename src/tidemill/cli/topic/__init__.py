"""``tidemill topic``: topics and their records.

``commands`` creates, lists, describes and deletes topics, and ``alter`` changes them. ``produce``
and ``consume`` write and read records, in the format of ``record_json``.
"""
