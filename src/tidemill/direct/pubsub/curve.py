"""CURVE: keys that encrypt ZeroMQ's connections, and say who is allowed.

Source: ZeroMQ RFC 25 (ZMTP-CURVE), RFC 32 (Z85). Must not know: sockets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tidemill.direct.pubsub.errors import PubSubError

_Z85 = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A pair of keys, each of 40 characters in Z85.

    Raises:
        PubSubError: one is not a key.
    """

    public: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check(self.public, "public")
        _check(self.secret, "secret")


@dataclass(frozen=True, slots=True)
class CurveServer:
    """The side that clients know by its public key. It is the one that binds, usually.

    Attributes:
        keys: its keys.
        allowed: public keys of clients. None: each client that knows the public key of the server.
    """

    keys: CurveKeys
    allowed: frozenset[bytes] | None = None

    def __post_init__(self) -> None:
        for each in self.allowed or ():
            _check(each, "public")


@dataclass(frozen=True, slots=True)
class CurveClient:
    """The side that knows its server.

    Attributes:
        keys: its keys.
        server: public key of the server. Without the secret of it, nothing can pose as the server.
    """

    keys: CurveKeys
    server: bytes

    def __post_init__(self) -> None:
        _check(self.server, "public")


Curve = CurveServer | CurveClient


def _check(key: bytes, name: str) -> None:
    if not isinstance(key, bytes) or not _Z85.fullmatch(key):
        raise PubSubError(  # without the key: it can be the secret one
            f"invalid {name} key of CURVE: it does not have 40 characters of Z85",
            hint="Make keys with tidemill.direct.pubsub.new_curve_keys().",
        )
