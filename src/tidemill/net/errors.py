"""Errors of connections."""

from __future__ import annotations

from tidemill.errors import TidemillError


class ProtocolError(TidemillError):
    """The bytes on a connection violate the protocol. The connection is closed."""


class RequestTooLargeError(ProtocolError):
    """A request is larger than ``limits.request_bytes``."""


class ClientGoneError(ProtocolError):
    """The client closed its connection before the broker had done all that it asked for."""
