"""Publish and subscribe, push and pull, without a broker: on ZeroMQ, or on nng.

Both libraries lose messages and don't say so. A sequence per publisher and channel goes with each
message, so that a subscriber reports what it missed. The libraries are optional and are imported by
the first socket.

Source: https://zguide.zeromq.org, chapters 2 and 5; https://nng.nanomsg.org.
"""

from tidemill.direct.pubsub.blocks import LogRecord
from tidemill.direct.pubsub.curve import CurveClient, CurveKeys, CurveServer
from tidemill.direct.pubsub.errors import ForkedError, MissingPackageError, PubSubError
from tidemill.direct.pubsub.following import LogLost, LogRestarted, Position
from tidemill.direct.pubsub.log import LogSubscriber
from tidemill.direct.pubsub.sockets import Publisher, Puller, Pusher, Subscriber
from tidemill.direct.pubsub.wire import Lost, Message
from tidemill.direct.pubsub.zeromq import new_curve_keys

__all__ = [
    "CurveClient",
    "CurveKeys",
    "CurveServer",
    "ForkedError",
    "LogLost",
    "LogRecord",
    "LogRestarted",
    "LogSubscriber",
    "Lost",
    "Message",
    "MissingPackageError",
    "Position",
    "PubSubError",
    "Publisher",
    "Puller",
    "Pusher",
    "Subscriber",
    "new_curve_keys",
]
