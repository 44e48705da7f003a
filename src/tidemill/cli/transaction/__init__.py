"""``tidemill transaction``: transactional ids, and the transactions that hold readers back.

``commands`` lists and describes ids, and ``find`` and ``abort`` have their own modules.
``coordinators`` and ``open_writes`` ask the brokers.
"""
