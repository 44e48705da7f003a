"""Errors of multicast streams. Must not know: sockets."""

from __future__ import annotations

from tidemill.errors import TidemillError


class MulticastError(TidemillError):
    """An address or an option of a stream can't be used."""


class PacketError(MulticastError):
    """A packet is malformed. It is counted and left out."""
