"""``tidemill transaction``: transactional ids, and the transactions that hold readers back.

``describe``, ``find`` and ``abort`` are the commands. ``coordinators`` and ``open_writes`` ask the
brokers.
"""
