"""``tidemill group``: consumer groups, their lag and their committed offsets.

``commands`` lists, describes and deletes groups, and ``seek`` moves their offsets. ``lag`` measures
how far a group is behind, and ``requests`` asks the broker.
"""
