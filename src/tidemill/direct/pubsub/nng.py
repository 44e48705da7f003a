"""Sockets of nng, the successor of nanomsg, as publishers and subscribers use them.

PUB of nng never waits: at its limit it drops the oldest message and does not say so. Sequences find
that at the subscriber. nng aborts a process that was forked after a socket was opened, and its
cleanup at exit never returns there, so this module refuses first, and disarms the cleanup.

Must not know: sequences, ZeroMQ.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from tidemill.direct.pubsub.errors import ForkedError, MissingPackageError, PubSubError
from tidemill.direct.pubsub.options import Options, check_range
from tidemill.direct.pubsub.wire import HEADER, LONGEST_CHANNEL, join, split
from tidemill.extras import how_to_install

LONGEST_QUEUE = 8192
_AT_ONCE = 256
_LOOK_S = 0.02
_sockets: weakref.WeakSet[Any] = weakref.WeakSet()
_is_loaded = False
_is_forked = False


class NngSocket:
    """A socket ``pub0`` that listens, or ``sub0`` that dials. Use it in one thread.

    Args:
        kind: ``Pub0`` or ``Sub0``.
        addresses: ``inproc://NAME``, ``ipc://PATH`` or ``tcp://HOST:PORT``; port 0 is a free one.
        options: queue and limit.
        prefixes: what ``sub0`` subscribes to.

    Attributes:
        addresses: as they listen or are dialed.

    Raises:
        PubSubError: an address or an option can't be used.
        MissingPackageError: pynng is not installed.
        ForkedError: nng was loaded before this process was forked.
    """

    def __init__(
        self, kind: str, addresses: Sequence[str], options: Options, prefixes: Sequence[bytes] = ()
    ) -> None:
        _check_options(options)
        self._nng = _module()
        self._is_closed = False
        self.addresses: list[str] = []
        self._socket: Any = getattr(self._nng, kind)()
        _sockets.add(self._socket)
        try:
            if kind == "Pub0":
                self._socket.send_buffer_size = options.queue_size
            else:
                self._socket.recv_buffer_size = options.queue_size
            self._socket.recv_max_size = (
                options.max_message_bytes + LONGEST_CHANNEL + 1 + HEADER.size
            )
            for prefix in prefixes:
                self._socket.subscribe(prefix)
            for address in addresses:
                self._attach(address, kind == "Pub0")
        except BaseException:
            self.close()
            raise

    def send(self, frames: Sequence[bytes]) -> bool:
        """Hand a message to the library, which always takes it.

        Raises:
            ForkedError: the process was forked after the socket was opened.
            PubSubError: the socket is closed.
        """
        self._check()
        channel, header, payload = frames
        self._socket.send(join(channel, header, payload))
        return True

    def receive(self, timeout_s: float) -> Iterator[list[bytes]]:
        """Yield the messages that are there; wait up to so long for the first one.

        Raises:
            ForkedError: the process was forked after the socket was opened.
            PubSubError: the socket is closed.
        """
        self._check()
        self._socket.recv_timeout = max(int(timeout_s * 1000), 0)
        try:
            yield split(self._socket.recv(block=timeout_s > 0))
            for _ in range(_AT_ONCE - 1):
                yield split(self._socket.recv(block=False))
        except (self._nng.Timeout, self._nng.TryAgain):
            return

    def subscribers(self, timeout_s: float) -> int:
        """Return how many subscribers are connected; wait up to so long, or a moment.

        Raises:
            ForkedError: the process was forked after the socket was opened.
            PubSubError: the socket is closed.
        """
        self._check()
        time.sleep(min(timeout_s, _LOOK_S))  # nng reports connections to callbacks only
        return len(self._socket.pipes)

    def close(self) -> None:
        """Close the socket. nng drops what it has not sent."""
        if not self._is_closed and not _is_forked:
            self._is_closed = True
            self._socket.close()

    def _check(self) -> None:
        _check_forked()
        if self._is_closed:
            raise PubSubError("the socket is closed")

    def _attach(self, address: str, listen: bool) -> None:
        try:
            if not listen:
                self._socket.dial(address, block=False)
            else:
                listener = self._socket.listen(address)
                if address.startswith("tcp://"):
                    address = f"tcp://{listener.local_address}"
        except (self._nng.NNGException, ValueError) as error:
            verb = "listen on" if listen else "dial"
            raise PubSubError(
                f"can't {verb} {address}: {error}",
                hint="Use inproc://NAME, ipc://PATH or tcp://HOST:PORT.",
            ) from error
        self.addresses.append(address)


def _check_options(options: Options) -> None:
    check_range("queue_size of nng", options.queue_size, 1, LONGEST_QUEUE)
    if options.curve is not None or options.wait_s or options.linger_s:
        raise PubSubError(
            "nng has neither CURVE nor a wait for room in a queue, and does not linger",
            hint='Leave out curve, wait_s and linger_s, or use library="zeromq".',
        )


def _check_forked() -> None:
    if _is_forked:
        raise ForkedError("nng was loaded before this process was forked, and would abort it")


def _module() -> Any:
    """Import pynng, which is an optional dependency."""
    global _is_loaded
    _check_forked()
    try:
        import pynng
    except ImportError:
        raise MissingPackageError(
            "the package pynng is not installed", hint=f"Install it: {how_to_install('nng')}."
        ) from None
    if not _is_loaded:
        _is_loaded = True
        os.register_at_fork(after_in_child=_disarm)
    return pynng


def _disarm() -> None:
    """Let a forked child never call nng: neither at exit, nor when a socket is collected."""
    global _is_forked
    _is_forked = True
    from pynng import nng

    atexit.unregister(nng._pynng_atexit)
    for each in list(_sockets):
        del each._socket  # pynng closes what has this attribute
