"""From the messages of pgoutput to committed changes.

``messages`` and ``rows`` decode bytes. ``shapes`` knows the tables of the stream, ``spool`` keeps
what is not committed yet, and ``stream`` puts changes in commit order.

Must not know: sockets, slots, Kafka.
"""
