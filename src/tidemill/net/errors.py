"""Errors of connections."""

from __future__ import annotations

from tidemill.errors import ProtocolError


class RequestTooLargeError(ProtocolError):
    """A request is larger than ``limits.request_bytes``."""


class ClientGoneError(ProtocolError):
    """The client closed its connection before the broker had done all that it asked for."""
