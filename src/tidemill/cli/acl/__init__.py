"""``tidemill acl``: rules of access. ``requests`` asks the broker, ``text`` is rules as text."""
