"""``tidemill user``: users that log in by SCRAM or with a password.

``requests`` asks the broker, and ``offline`` changes a data folder that no broker uses.
"""
