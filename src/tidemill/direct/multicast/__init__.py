"""Streams of messages over UDP multicast, with recovery: MoldUDP64.

A publisher numbers its messages and sends them to a group. A receiver that misses some asks a
re-request server for them. ``ring`` has a publisher that needs nothing else: it answers from its
last messages. The bridge in ``tidemill.connect`` answers from a log, however old a message is.

Source: MoldUDP64 Protocol Specification, version 1.00, Nasdaq.
"""

from tidemill.direct.multicast.envelope import Record, decode_record, encode_record
from tidemill.direct.multicast.errors import MulticastError
from tidemill.direct.multicast.receiver import Lost, Received, Receiver, Restarted
from tidemill.direct.multicast.ring import RingPublisher
from tidemill.direct.multicast.sockets import MulticastReceiver

__all__ = [
    "Lost",
    "MulticastError",
    "MulticastReceiver",
    "Received",
    "Receiver",
    "Record",
    "Restarted",
    "RingPublisher",
    "decode_record",
    "encode_record",
]
