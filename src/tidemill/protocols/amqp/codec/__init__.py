"""AMQP 0-9-1's wire format.

- ``tables`` reads and writes field tables, ``methods`` the arguments of methods, and ``properties``
  the properties of messages.
- ``hot`` writes by hand what each message costs: deliveries, returns and confirms.
- ``frames`` cuts received bytes into events, and reads a publish in one pass.

The codec is sans-IO: it knows no sockets, no clock, no engine and no state of a channel.
"""
