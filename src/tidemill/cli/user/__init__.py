"""``tidemill user``: users that log in by SCRAM or with a password.

``requests`` asks the broker, ``offline`` changes a data folder that no broker uses, and ``presets``
has the least rules of what tidemill itself runs.
"""
