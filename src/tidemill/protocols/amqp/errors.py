"""Errors of AMQP connections: what closes a connection or a channel, with AMQP's code.

``error_codes`` makes these from the errors of the engine. This module must not know the engine.
"""

from __future__ import annotations

from tidemill.errors import ProtocolError

REPLY_TEXTS = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
"""AMQP's reply codes and their names (amqp0-9-1.xml, soft and hard errors)."""


class AmqpError(ProtocolError):
    """A client did something that is not possible. It gets a code and a text.

    Attributes:
        code: AMQP's reply code.
        text: the reply text, at most 255 bytes, which begins with the code's name.
    """

    def __init__(self, code: int, problem: str) -> None:
        text = f"{REPLY_TEXTS[code]} - {problem}"
        super().__init__(text)
        self.code = code
        self.text = text


class ConnectionClosedError(AmqpError):
    """The connection is closed with the code (a hard error)."""


class ChannelClosedError(AmqpError):
    """The channel is closed with the code (a soft error). Other channels continue."""


class FrameError(ConnectionClosedError):
    """The bytes are not a frame, or a frame is too large."""

    def __init__(self, problem: str) -> None:
        super().__init__(501, problem)


class MalformedError(ConnectionClosedError):
    """The content of a frame can't be decoded."""

    def __init__(self, problem: str) -> None:
        super().__init__(502, problem)


class UnexpectedFrameError(ConnectionClosedError):
    """A frame has no place where it arrived."""

    def __init__(self, problem: str) -> None:
        super().__init__(505, problem)


class UnfinishedError(ConnectionClosedError):
    """Messages that have arrived in part take too much memory of one connection."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__(
            506,
            f"{count} unfinished messages take {size} bytes, and the limit of a connection is "
            "limits.connection_inflight_bytes. Finish messages before others are begun",
        )
