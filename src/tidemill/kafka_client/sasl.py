"""Computes the messages of SASL: PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677), tokens (RFC 7628).

Must not know: sockets, Kafka requests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping

from tidemill.kafka_client.errors import ConnectionRejectedError

_LEAST_ITERATIONS, _MOST_ITERATIONS = 4096, 1_000_000
"""RFC 7677 demands the least. More than the most would keep a client busy for seconds."""


def plain(username: str, password: str) -> bytes:
    """Return the only message of PLAIN."""
    return f"\0{username}\0{password}".encode()


CONFIRMATION = b"\1"
"""The answer of OAUTHBEARER to a refusal, which the broker then repeats as an error."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_EXTENSION = re.compile(r"[A-Za-z]+=[\x21-\x7e \t\r\n]+")


def oauthbearer(token: str, extensions: Mapping[str, str]) -> bytes:
    """Return the first message of OAUTHBEARER.

    Args:
        extensions: more for the broker, by name (KIP-342).

    Raises:
        ConnectionRejectedError: the token or an extension has characters that are not allowed.
    """
    pairs = [f"{name}={value}" for name, value in extensions.items()]
    is_valid = _TOKEN.fullmatch(token) and all(map(_EXTENSION.fullmatch, pairs))
    if not is_valid or "auth" in extensions:
        raise ConnectionRejectedError("the token of OAUTHBEARER, or an extension, is malformed")
    text = "".join(f"{pair}\1" for pair in [f"auth=Bearer {token}", *pairs])
    return f"n,,\1{text}\1".encode()


class Scram:
    """The client's side of one SCRAM exchange, without channel binding.

    Args:
        algorithm: ``sha256`` or ``sha512``.
        nonce: The client's nonce; None for a random one.
    """

    def __init__(
        self, algorithm: str, username: str, password: str, nonce: str | None = None
    ) -> None:
        self._algorithm = algorithm
        self._password = password.encode()
        self._nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message."""
        text = _text(server_first)
        fields = _fields(text)
        nonce = fields.get("r", "")
        try:
            salt = base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError, binascii.Error):
            raise _invalid() from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce or "m" in fields:
            raise _invalid()
        if not _LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
            raise ConnectionRejectedError(
                f"the broker demands {iterations} iterations of SCRAM, which is not between "
                f"{_LEAST_ITERATIONS} and {_MOST_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(self._algorithm, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        stored_key = hashlib.new(self._algorithm, client_key).digest()
        signature = self._hmac(stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Check that the server knows the password, too."""
        fields = _fields(_text(server_final))
        if "e" in fields:
            raise ConnectionRejectedError(f"SCRAM authentication failed: {fields['e']}")
        try:
            signature = base64.b64decode(fields["v"], validate=True)
        except (KeyError, ValueError, binascii.Error):
            raise _invalid() from None
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ConnectionRejectedError(
                "SCRAM authentication failed: the broker does not know the password"
            )

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._algorithm)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise _invalid() from None


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _invalid() -> ConnectionRejectedError:
    return ConnectionRejectedError("SCRAM authentication failed: invalid message from the broker")
