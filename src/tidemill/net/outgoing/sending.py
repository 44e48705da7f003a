"""Pass buffers and ranges of files to a socket that takes what it can.

One call sends many parts: buffers together (sendmsg), ranges of files without reading them
(sendfile). The compiled extension does it without Python's lock; the edition here gives the same
results. Knows descriptors; must not know an event loop or who waits.
"""

from __future__ import annotations

import enum
import socket
from collections.abc import Sequence

from tidemill import system
from tidemill.native import load
from tidemill.parts import Buffer, Part

FILE_PIECE_BYTES = 1_048_576
"""Bytes of a file that one call sends, and that are read together if they are not cached."""
SHORT_BYTES = 4096
"""A shorter buffer is sent although the room is used up. It is often the end of a response, which
its client can't use before."""
MOST_PARTS = 64
"""Parts that are sent in one call."""


class Ended(enum.IntEnum):
    """The reason why no more was sent."""

    MORE = 0
    """All is sent, or the room is used up."""
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


_native = load()


def send_parts(
    to: socket.socket, parts: list[Part], skip: int, room: int, known: Known
) -> tuple[int, Ended]:
    """Send parts in order, without waiting.

    Args:
        to: the socket. It must not block.
        parts: what to send; no part is empty.
        skip: bytes of the first part that are sent already.
        room: bytes after which the call ends, to the accuracy of ``FILE_PIECE_BYTES``.
        known: the files that the kernel need not be asked about.

    Returns:
        The number of sent bytes, and why there are not more.

    Raises:
        OSError: the connection is closed, or a file can't be read.
    """
    if _native is not None:
        sent, ended = _native.send_parts(to.fileno(), parts, skip, room, known)
        return sent, Ended(ended)
    return send_parts_in_python(to, parts, skip, room, known)


def send_parts_in_python(
    to: socket.socket, parts: list[Part], skip: int, room: int, known: Known
) -> tuple[int, Ended]:
    """Send parts like ``send_parts``, without the compiled extension."""
    total, at = 0, 0
    count = min(len(parts), MOST_PARTS)
    while at < count:
        part = parts[at]
        is_buffer = isinstance(part, bytes | bytearray | memoryview)
        if room <= 0 and not (is_buffer and len(part) < SHORT_BYTES):
            break
        try:
            if isinstance(part, bytes | bytearray | memoryview):
                sent = _send_buffers(to, parts[at:count], skip, room)
            else:
                size = min(len(part) - skip, FILE_PIECE_BYTES)
                if not known and not system.is_cached(part.fd, part.position + skip, size):
                    return total, Ended.UNCACHED
                known = known if known is Known.ALL else Known.NONE
                sent = system.send_file(to.fileno(), part.fd, part.position + skip, size)
                if sent == 0:
                    return total, Ended.CUT
        except BlockingIOError:
            return total, Ended.FULL
        total += sent
        room -= sent
        skip += sent
        while at < count and skip >= len(parts[at]):
            skip -= len(parts[at])
            at += 1
    return total, Ended.MORE


def _send_buffers(to: socket.socket, parts: Sequence[Part], skip: int, room: int) -> int:
    """Send buffers up to the next file or the end of the room."""
    buffers: list[Buffer] = []
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview) or (buffers and room <= 0):
            break
        room -= len(part)
        buffers.append(memoryview(part)[skip:] if skip and not buffers else part)
    flags = socket.MSG_MORE if len(buffers) < len(parts) else 0
    return to.sendmsg(buffers, (), flags)
