"""``tidemill group``: consumer and share groups, their lag and their committed offsets.

``commands`` lists, describes and deletes groups, and ``seek`` moves their offsets. ``lag`` measures
how far a group is behind, ``requests`` asks the broker, and ``shares`` asks about share groups.
"""
