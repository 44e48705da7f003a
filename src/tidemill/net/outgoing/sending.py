"""Pass buffers and ranges of files to a socket that takes what it can.

One call of the extension sends many parts, without Python's lock: buffers together (sendmsg),
ranges of files without reading them (sendfile). Only Linux has that (``system.can_send_files``).
Knows descriptors; must not know an event loop or who waits.
"""

from __future__ import annotations

import enum
import socket

from tidemill.native import extension
from tidemill.parts import Part

FILE_PIECE_BYTES = 1_048_576
"""Bytes of a file that one call sends, and that are read together if they are not cached."""
SHORT_BYTES = 4096
"""A shorter buffer is sent although the limit is reached. It is often the end of a response, which
its client can't use before."""
MOST_PARTS = 64
"""Parts that are sent in one call."""


class Ended(enum.IntEnum):
    """The reason why no more was sent."""

    MORE = 0
    """All is sent, or the limit is reached."""
    FULL = 1
    """The socket takes nothing more now."""
    UNCACHED = 2
    """The next piece of a file must be read first: it is not in the page cache."""
    CUT = 3
    """A file is shorter than the range."""


class Known(enum.IntEnum):
    """The ranges of files of which the caller knows that they are in the page cache."""

    NONE = 0
    PIECE = 1
    """The next piece (``FILE_PIECE_BYTES``)."""
    ALL = 2


def send_parts(
    to: socket.socket, parts: list[Part], skip: int, left: int, known: Known
) -> tuple[int, Ended]:
    """Send parts in order, without waiting.

    Args:
        to: the socket. It must not block.
        parts: what to send; no part is empty.
        skip: bytes of the first part that are sent already.
        left: bytes after which the call ends, to the accuracy of ``FILE_PIECE_BYTES``.
        known: the files that the kernel need not be asked about.

    Returns:
        The number of sent bytes, and why there are not more.

    Raises:
        OSError: the connection is closed, or a file can't be read.
    """
    sent, ended = extension.send_parts(to.fileno(), parts, skip, left, known)
    return sent, Ended(ended)
