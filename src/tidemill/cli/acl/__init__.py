"""``tidemill acl``: rules of access.

``requests`` asks the broker, ``text`` is rules as users write them, and ``presets`` has the least
rules of what tidemill itself runs.
"""
