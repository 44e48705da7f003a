"""Sockets of ZeroMQ, as publishers, subscribers, pushers and pullers use them.

PUB drops messages at its limit and never says so. XPUB with ZMQ_XPUB_NODROP refuses a message
instead, which is counted, or waited for. Without that option XPUB drops as PUB does, for the slow
subscriber only: that is for logs, where the subscriber asks for what it misses. Source: libzmq's
zmq_setsockopt(3).

Must not know: sequences, nng.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.direct.pubsub.curve import Curve, CurveKeys, CurveServer
from tidemill.direct.pubsub.errors import ForkedError, MissingPackageError, PubSubError
from tidemill.direct.pubsub.options import Options
from tidemill.extras import how_to_install

if TYPE_CHECKING:
    import zmq

_LARGEST_SUBSCRIPTION = 64 << 10
_AT_ONCE = 256
_LOOK_EVERY = 64
_NOBLOCK, _SNDMORE = 1, 2  # those of zmq are enums, which are slow to pass on
_DOMAIN = "tidemill"
_KEEPALIVE = {"TCP_KEEPALIVE": 1, "TCP_KEEPALIVE_IDLE": 30, "TCP_KEEPALIVE_INTVL": 10}


class ZeroMqSocket:
    """A socket that is bound or connected. Use it in one thread.

    Args:
        kind: ``XPUB``, ``SUB``, ``PUSH``, ``PULL``, ``ROUTER`` or ``DEALER``.
        addresses: ``inproc://NAME``, ``ipc://PATH`` or ``tcp://HOST:PORT``; port 0 is a free one.
        bind: whether to bind and not to connect.
        options: queues, limits, keys.
        prefixes: what SUB subscribes to.
        drops: whether XPUB drops messages for a subscriber whose queue is full.

    Attributes:
        addresses: as they are bound or connected.

    Raises:
        PubSubError: an address or a key can't be used.
        MissingPackageError: pyzmq is not installed.
    """

    def __init__(
        self,
        kind: str,
        addresses: Sequence[str],
        options: Options,
        *,
        bind: bool,
        prefixes: Sequence[bytes] = (),
        drops: bool = False,
    ) -> None:
        self._zmq = _module()
        self._pid = os.getpid()
        self._linger_ms = int(options.linger_s * 1000)
        self._keeper: Any = None
        self._waits = options.wait_s > 0
        self._subscriptions = self._sends = 0
        self._is_closed = False
        self._context = self._context_for(options.curve)
        self._socket: zmq.Socket[bytes] = self._context.socket(getattr(self._zmq, kind))
        self.addresses: list[str] = []
        try:
            self._set(kind, addresses, options, bind)
            if kind == "XPUB":
                self._socket.setsockopt(self._zmq.XPUB_NODROP, int(not drops))
            for prefix in prefixes:
                self._socket.setsockopt(self._zmq.SUBSCRIBE, prefix)
            for address in addresses:
                self._attach(address, bind)
        except BaseException:
            self.close()
            raise

    def send(self, frames: Sequence[bytes]) -> bool:
        """Hand a message to the library; return False if its queue stays full for ``wait_s``.

        Raises:
            ForkedError: the process was forked after the socket was opened.
            PubSubError: the socket is closed.
        """
        self._check()
        self._sends += 1
        if not self._sends % _LOOK_EVERY:
            self._take_subscriptions()
        if self._send(frames):
            return True
        if self._waits:
            return False
        # libzmq looks only now and then for what a peer has read; asking for EVENTS always does.
        self._socket.getsockopt(self._zmq.EVENTS)
        return self._send(frames)

    def _send(self, frames: Sequence[bytes]) -> bool:
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, _SNDMORE)
            self._socket.send(frames[-1])
        except self._zmq.Again:
            return False
        except self._zmq.ZMQError as error:
            if error.errno != self._zmq.EHOSTUNREACH:  # the peer of a ROUTER is gone
                raise
            return False
        return True

    def receive(self, timeout_s: float) -> Iterator[list[bytes]]:
        """Yield the messages that are there; wait up to so long for the first one.

        Raises:
            ForkedError: the process was forked after the socket was opened.
            PubSubError: the socket is closed.
        """
        self._check()
        if not self._socket.poll(max(int(timeout_s * 1000), 0)):
            return
        receive = self._socket.recv_multipart
        try:
            for _ in range(_AT_ONCE):
                yield receive(_NOBLOCK)
        except self._zmq.Again:
            return

    def wait_with(self, other: ZeroMqSocket, timeout_s: float) -> None:
        """Wait up to so long until this socket or another one has a message.

        Raises:
            ForkedError: the process was forked after the socket was opened.
            PubSubError: the socket is closed.
        """
        self._check()
        asked = [(each._socket, self._zmq.POLLIN) for each in (self, other)]
        self._zmq.zmq_poll(asked, max(int(timeout_s * 1000), 0))

    def subscribers(self, timeout_s: float) -> int:
        """Return how many prefixes all subscribers together have; wait up to so long for a change.

        Raises:
            ForkedError: the process was forked after the socket was opened.
            PubSubError: the socket is closed.
        """
        self._check()
        self._socket.poll(max(int(timeout_s * 1000), 0), self._zmq.POLLIN)
        self._take_subscriptions()
        return self._subscriptions

    def close(self) -> None:
        """Close the socket. What is queued is still sent for ``linger_s``."""
        # In a forked child the threads of the library are missing: it would wait for them.
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._socket.close(linger=self._linger_ms)
        if self._keeper is not None:
            self._keeper.stop()
            self._context.term()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("a socket of ZeroMQ was opened before this process was forked")
        if self._is_closed:
            raise PubSubError("the socket is closed")

    def _context_for(self, curve: Curve | None) -> zmq.Context[zmq.Socket[bytes]]:
        """Return the context of this process, or one that checks the keys of clients."""
        if not isinstance(curve, CurveServer) or curve.allowed is None:
            shared: zmq.Context[zmq.Socket[bytes]] = self._zmq.Context.instance()
            return shared
        from zmq.auth.thread import ThreadAuthenticator

        context: zmq.Context[zmq.Socket[bytes]] = self._zmq.Context()
        self._keeper = ThreadAuthenticator(context)
        self._keeper.start()
        self._keeper.configure_curve_callback(_DOMAIN, _Allowed(curve.allowed))
        return context

    def _set(self, kind: str, addresses: Sequence[str], options: Options, bind: bool) -> None:
        zmq, socket = self._zmq, self._socket
        values = {
            "SNDHWM": options.queue_size,
            "RCVHWM": options.queue_size,
            "LINGER": self._linger_ms,
            "SNDTIMEO": int(options.wait_s * 1000),
            "IPV6": int(any("[" in each for each in addresses)),
            **_KEEPALIVE,
        }
        if bind:
            # On a side that connects, libzmq would never connect again after a larger message.
            values["MAXMSGSIZE"] = options.max_message_bytes
        if kind == "XPUB":
            # VERBOSER reports each subscription, also one that another subscriber has.
            values |= {"XPUB_VERBOSER": 1, "MAXMSGSIZE": _LARGEST_SUBSCRIPTION}
        if kind == "ROUTER":
            values["ROUTER_MANDATORY"] = 1  # or else it drops answers and does not say so
        for name, value in values.items():
            socket.setsockopt(getattr(zmq, name), value)
        curve = options.curve
        if curve is None:
            return
        if not zmq.has("curve"):
            raise PubSubError("this libzmq was built without CURVE", hint="Install pyzmq's wheel.")
        socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, curve.keys.secret)
        if isinstance(curve, CurveServer):
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())
        else:
            socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server)

    def _attach(self, address: str, bind: bool) -> None:
        try:
            if bind:
                self._socket.bind(address)
                address = self._socket.getsockopt_string(self._zmq.LAST_ENDPOINT).rstrip("\0")
            else:
                self._socket.connect(address)
        except (self._zmq.ZMQError, ValueError) as error:
            verb = "bind" if bind else "connect to"
            reason = getattr(error, "strerror", None) or error
            raise PubSubError(
                f"can't {verb} {address}: {reason}",
                hint="Use inproc://NAME, ipc://PATH or tcp://IP:PORT.",
            ) from error
        self.addresses.append(address)

    def _take_subscriptions(self) -> None:
        """Read what subscribers sent: XPUB keeps it without a limit until it is read."""
        if self._socket.type != self._zmq.XPUB:
            return
        while self._socket.getsockopt(self._zmq.EVENTS) & self._zmq.POLLIN:
            data = self._socket.recv_multipart(self._zmq.NOBLOCK)[0]
            self._subscriptions += {b"\1": 1, b"\0": -1}.get(data[:1], 0)


class _Allowed:
    """The keys that are allowed, as pyzmq's authenticator asks for them."""

    def __init__(self, keys: frozenset[bytes]) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client with this public key is allowed."""
        return key in self._keys


def check_installed() -> None:
    """Check that pyzmq is installed.

    Raises:
        MissingPackageError: it is not.
    """
    _module()


def new_curve_keys() -> CurveKeys:
    """Return a new pair of keys for CURVE.

    Raises:
        MissingPackageError: pyzmq is not installed.
    """
    return CurveKeys(*_module().curve_keypair())


def _module() -> Any:
    """Import pyzmq, which is an optional dependency."""
    try:
        import zmq
    except ImportError:
        raise MissingPackageError(
            "the package pyzmq is not installed", hint=f"Install it: {how_to_install('zeromq')}."
        ) from None
    return zmq
