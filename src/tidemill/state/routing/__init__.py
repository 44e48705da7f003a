"""Exchanges, queues and bindings: what is declared, and which queues a message goes to.

Pure: commands return records for the internal topic ``__tidemill_queues``, and ``replay`` applies
them. Knows neither logs nor messages.
"""
