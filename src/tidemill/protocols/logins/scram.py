"""The broker's side of SCRAM (RFC 5802, RFC 7677), without channel binding. Without I/O of its own.

A user who is not known takes the same path as one who is: it gets a salt that stays the same, and
keys that fit to no password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from tidemill.protocols.logins.contract import (
    SCRAM,
    Credentials,
    LoginFailedError,
    Proved,
    ScramKeys,
    checked_name,
    decoded,
)

ITERATIONS = 4096
"""Rounds of PBKDF2 for keys that the broker derives itself, as in Apache Kafka."""
SALT_BYTES = 16
MOST_NONCE = 256
"""Longest nonce of a client in characters."""
_FIRST = re.compile(
    r"(?P<header>[yn],(?:a=(?P<acting>[^,]+))?,)(?P<bare>n=(?P<name>[^,]+),"
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)",
    re.DOTALL,
)
_FINAL = re.compile(
    r"(?P<signed>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]=[^,]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Keys:
    """The stored keys of a user for one mechanism. Nothing in them is a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def derived(algorithm: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Keys:
    """Return the keys of a password. This takes milliseconds."""
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    return Keys(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", algorithm))


def decoy(secret: bytes, user: str, mechanism: str) -> Keys:
    """Return the keys of a user who does not exist: always the same, and of no password.

    Args:
        secret: Without it, a client can't compute the salt and compare.
    """
    seed = hashlib.shake_256(b"\0".join((secret, mechanism.encode(), user.encode())))
    size = hashlib.new(SCRAM[mechanism]).digest_size
    stream = seed.digest(SALT_BYTES + 2 * size)
    return Keys(
        stream[:SALT_BYTES],
        ITERATIONS,
        stream[SALT_BYTES : SALT_BYTES + size],
        stream[SALT_BYTES + size :],
    )


class Scram:
    """One login. Implements ``Exchange``.

    Args:
        mechanism: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        nonce: the broker's part of the nonce; None for a random one.
    """

    def __init__(self, mechanism: str, credentials: Credentials, nonce: str | None = None) -> None:
        self._mechanism = mechanism
        self._algorithm = SCRAM[mechanism]
        self._credentials = credentials
        self._own_nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        self._user = ""
        self._nonce = ""
        self._begun = ""
        self._binding = b""
        self._keys: ScramKeys | None = None
        self._is_known = False
        self.proved: Proved | None = None

    async def step(self, message: bytes) -> bytes:
        """Take the first or the final message of the client."""
        text = decoded(message)
        if self._keys is None:
            return await self._first(text)
        return self._final(text, self._keys)

    async def _first(self, text: str) -> bytes:
        found = _FIRST.fullmatch(text)
        if found is None:  # also channel binding (p=) and mandatory extensions (m=)
            raise LoginFailedError("the first message of SCRAM is malformed")
        user = self._user = checked_name(_unescaped(found["name"]))
        if found["acting"] is not None and _unescaped(found["acting"]) != user:
            raise LoginFailedError("the authorization id is not the name of the user", user)
        if len(found["nonce"]) > MOST_NONCE:
            raise LoginFailedError("the nonce is too long", user)
        keys, self._is_known = await self._credentials.keys(user, self._mechanism)
        self._keys = keys
        self._nonce = found["nonce"] + self._own_nonce
        self._binding = found["header"].encode()
        salt = base64.b64encode(keys.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={keys.iterations}"
        self._begun = f"{found['bare']},{server_first}"
        return server_first.encode()

    def _final(self, text: str, keys: ScramKeys) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise LoginFailedError("the final message of SCRAM is malformed", self._user)
        # Older librdkafka repeats its own part of the nonce in front, and Apache Kafka allows it.
        is_ours = found["nonce"].endswith(self._nonce)
        if _base64(found["binding"]) != self._binding or not is_ours:
            raise LoginFailedError("the final message of SCRAM is not of this login", self._user)
        signed = f"{self._begun},{found['signed']}".encode()
        signature = hmac.digest(keys.stored_key, signed, self._algorithm)
        proof = _base64(found["proof"])
        if len(proof) != len(signature):
            raise LoginFailedError("the proof has another length", self._user)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._algorithm, client_key).digest()
        answer = hmac.digest(keys.server_key, signed, self._algorithm)
        if not hmac.compare_digest(stored_key, keys.stored_key) or not self._is_known:
            raise LoginFailedError("unknown user or wrong password", self._user)
        self.proved = Proved(self._user)
        return b"v=" + base64.b64encode(answer)


def _unescaped(name: str) -> str:
    """Return a name without SCRAM's escapes of ``,`` and ``=``."""
    if re.fullmatch(r"(?:[^=]|=2C|=3D)*", name, re.DOTALL) is None:
        raise LoginFailedError("the name of the user is malformed")
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginFailedError("the message is not base64") from None
