"""The ``tidemill`` command, which is the only code that prints.

``main`` has the tree of commands and handles errors. Each group of commands has a folder:
``server``, ``topic``, ``group``, ``transaction``, ``pipeline`` and ``demo``. Commands for a running
broker use a Kafka client (``client``, and ``broker_requests`` for what librdkafka lacks). So they
work with Apache Kafka too. ``options`` has the options that commands share, and ``output`` prints.
"""
