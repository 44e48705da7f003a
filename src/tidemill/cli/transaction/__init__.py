"""``tidemill transaction``: transactional ids, and the transactions that hold readers back.

``commands`` lists and describes ids, and ``find`` and ``abort`` have their own modules.
``requests`` words the errors of ``kafka_client.admin``, which asks the brokers.
"""
