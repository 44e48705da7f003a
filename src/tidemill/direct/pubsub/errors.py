"""Errors of publishers and subscribers. Must not know: sockets."""

from __future__ import annotations

from tidemill.errors import TidemillError


class PubSubError(TidemillError):
    """An address, a key or an option can't be used."""


class MissingPackageError(PubSubError):
    """The library of a socket is not installed. The hint has the command that installs it."""


class ForkedError(PubSubError):
    """A socket, or nng itself, is used in a process that was forked after it was opened."""

    default_hint = (
        "Open sockets in the process that uses them, or start processes with "
        "multiprocessing.get_context('spawn')."
    )


class FrameError(PubSubError):
    """A message does not have the frames of this package. It is counted and left out."""
