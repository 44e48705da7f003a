"""A small client of AMQP 0-9-1, for commands and for the gateway's pages.

``connection`` is one connection with one channel, ``moving`` moves messages between queues. It uses
the codec of the broker's protocol, and knows nothing else of it.
"""
