"""Sign and verify messages as Standard Webhooks 1.0 describes: ``v1`` and ``v1a``.

``v1`` is HMAC-SHA-256 with a shared secret (``whsec_``). ``v1a`` is ed25519: the sender has a
private key (``whsk_``), the receiver its public key (``whpk_``). Several keys are valid at the same
time, so that a secret can be replaced without a failed delivery. Must not know: HTTP, Kafka, the
clock.
Source: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.connect.base.secrets import Secret
from tidemill.errors import SettingsError, TidemillError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""The headers of a signed message."""
MAX_SIGNATURES = 8
"""Signatures in one header that a receiver compares. A sender has one for each key in use."""
MAX_HEADER = 4096
"""Characters of a header that is read."""
TOLERANCE_S = 300
"""How far the time of a message can be from the receiver's clock, in seconds, both ways."""

_SHARED, _PRIVATE, _PUBLIC = "whsec_", "whsk_", "whpk_"
_MIN_SECRET, _MAX_SECRET = 16, 1024
"""Bytes of a shared secret. The standard says 24 to 64; senders exist that have others."""
_KEY = 32
"""Bytes of an ed25519 key. Some tools write a private key with the public one behind it."""
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)
_IDENTITY = re.compile(r"[!-\-/-~]{1,256}", re.ASCII)
"""An id: printable ASCII without a dot, which separates the parts of what is signed."""

Sign = Callable[[bytes], str]
"""Returns the signature of bytes with its version, e.g. ``v1,…``."""
Matches = Callable[[bytes, Sequence[bytes]], bool]
"""Says whether one of several signatures is that of the bytes in the first argument."""


class SignatureError(TidemillError):
    """A message is not signed as its receiver requires: a header is missing, malformed or too old,
    or no signature matches. The receiver answers 401.
    """


class Signer:
    """Signs messages with each of its keys.

    Args:
        keys: ``whsec_…`` or ``whsk_…``, the newest first. A text without a prefix is the base64
            of a shared secret.

    Raises:
        SettingsError: a key is invalid, or there is none.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._signs = [_sign_with(_text(key)) for key in keys]
        if not self._signs:
            raise SettingsError("no secret to sign with", hint=_HINT)

    def headers(self, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
        """Return the headers of a message.

        Args:
            message_id: the id, the same for each attempt to deliver the message: printable ASCII
                without a dot.
            timestamp_s: the time of this attempt in seconds since 1970.

        Raises:
            ValueError: the id has other characters, so receivers would refuse it.
        """
        if not _IDENTITY.fullmatch(message_id):
            raise ValueError(f"invalid id of a message {message_id!r}: use ASCII without a dot")
        signed = signed_bytes(message_id, str(timestamp_s), body)
        signatures = " ".join([sign(signed) for sign in self._signs])
        return {ID: message_id, TIMESTAMP: str(timestamp_s), SIGNATURE: signatures}


class Verifier:
    """Verifies messages that one of several keys has signed.

    Args:
        keys: ``whsec_…``, ``whpk_…`` or ``whsk_…``.

    Raises:
        SettingsError: a key is invalid, or there is none.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [_matcher(_text(key)) for key in keys]
        if not self._keys:
            raise SettingsError("no secret to verify with", hint=_HINT)

    def verify(
        self,
        headers: Mapping[str, str],
        body: bytes,
        now_s: float,
        tolerance_s: float = TOLERANCE_S,
        prefix: str = "webhook-",
    ) -> str:
        """Check a message, and return its id.

        Args:
            headers: the headers, by names in small letters.
            body: the bytes as they arrived.
            now_s: the time in seconds since 1970.
            tolerance_s: how far the signed time can be from ``now_s``, both ways.
            prefix: what the names of the headers begin with. Svix has ``svix-``.

        Raises:
            SignatureError: the message must not be accepted.
        """
        message_id, timestamp, signature = (
            header(headers, prefix + name) for name in ("id", "timestamp", "signature")
        )
        if not _IDENTITY.fullmatch(message_id):
            raise SignatureError(f"the header {prefix}id is malformed")
        check_time(timestamp, now_s, tolerance_s)
        given = _signatures(signature)
        signed = signed_bytes(message_id, timestamp, body)
        # Each key is tried, so that the time does not say which one has signed.
        found = [matches(signed, given.get(version, ())) for version, matches in self._keys]
        if not any(found):
            raise SignatureError("no signature matches")
        return message_id


def new_secret() -> Secret:
    """Return a new shared secret of 32 bytes, as ``whsec_…``."""
    return Secret(_SHARED + base64.b64encode(secrets.token_bytes(32)).decode())


def new_key_pair() -> tuple[Secret, str]:
    """Return a new private key (``whsk_…``) and its public key (``whpk_…``)."""
    seed = secrets.token_bytes(_KEY)
    private = Secret(_PRIVATE + base64.b64encode(seed).decode())
    return private, public_key(private)


def public_key(private: str) -> str:
    """Return the public key (``whpk_…``) of a private one (``whsk_…``).

    Raises:
        SettingsError: the private key is invalid.
    """
    raw = _private_key(_text(private)).public_key().public_bytes_raw()
    return _PUBLIC + base64.b64encode(raw).decode()


def signed_bytes(message_id: str, timestamp: str, body: bytes) -> bytes:
    """Return what is signed: the id, the time and the body, with dots between them."""
    return b"%s.%s.%s" % (message_id.encode(), timestamp.encode(), body)


def header(headers: Mapping[str, str], name: str) -> str:
    """Return a header that must be there.

    Raises:
        SignatureError: it is missing, empty or too long.
    """
    value = headers.get(name, "")
    if not value:
        raise SignatureError(f"the header {name} is missing")
    if len(value) > MAX_HEADER:
        raise SignatureError(f"the header {name} is longer than {MAX_HEADER} characters")
    return value


def check_time(timestamp: str, now_s: float, tolerance_s: float) -> None:
    """Check the time at which a message was signed.

    Args:
        timestamp: seconds since 1970, as text.

    Raises:
        SignatureError: it is not a number, or too far from ``now_s``.
    """
    if not _TIME.fullmatch(timestamp):
        raise SignatureError("the time of the signature is malformed")
    if abs(now_s - int(timestamp)) > tolerance_s:
        raise SignatureError(
            f"the time of the signature is more than {tolerance_s:g} s from the receiver's clock"
        )


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a base64 text, or None if it is malformed."""
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return None


def _signatures(text: str) -> dict[str, list[bytes]]:
    """Return the signatures of a header by version. Those that are malformed are left out.

    Raises:
        SignatureError: there are too many.
    """
    parts = text.split()
    if len(parts) > MAX_SIGNATURES:
        raise SignatureError(f"more than {MAX_SIGNATURES} signatures")
    found: dict[str, list[bytes]] = {}
    for part in parts:
        version, comma, encoded = part.partition(",")
        signature = decode_base64(encoded)
        if comma and signature:
            found.setdefault(version, []).append(signature)
    return found


_HINT = "Create one: whsec_ and the base64 of 24 to 64 random bytes."


def _text(key: str) -> str:
    return key.reveal() if isinstance(key, Secret) else key


def _sign_with(key: str) -> Sign:
    if key.startswith(_PUBLIC):
        raise SettingsError(
            "a public key (whpk_) can't sign", hint="Sign with the private key (whsk_)."
        )
    if key.startswith(_PRIVATE):
        private = _private_key(key)
        return lambda signed: "v1a," + base64.b64encode(private.sign(signed)).decode()
    mac = _hmac(_shared_secret(key))
    return lambda signed: "v1," + base64.b64encode(mac(signed)).decode()


def _matcher(key: str) -> tuple[str, Matches]:
    """Return the version of a key's signatures, and what compares them."""
    if key.startswith((_PUBLIC, _PRIVATE)):
        from cryptography.exceptions import InvalidSignature

        verify = _public_key(key).verify

        def is_valid(signed: bytes, signature: bytes) -> bool:
            try:
                verify(signature, signed)
            except InvalidSignature:
                return False
            return True

        return "v1a", lambda signed, given: any(is_valid(signed, each) for each in given)
    mac = _hmac(_shared_secret(key))

    def matches(signed: bytes, given: Sequence[bytes]) -> bool:
        expected = mac(signed)
        return any(hmac.compare_digest(expected, each) for each in given)

    return "v1", matches


def _hmac(key: bytes) -> Callable[[bytes], bytes]:
    """Return HMAC-SHA-256 with a key. To begin takes OpenSSL longer than to hash a message."""
    begun = hmac.new(key, digestmod="sha256")

    def mac(signed: bytes) -> bytes:
        found = begun.copy()
        found.update(signed)
        return found.digest()

    return mac


def _shared_secret(key: str) -> bytes:
    encoded = key.removeprefix(_SHARED)
    # Some senders give out base64 without its padding.
    secret = decode_base64(encoded + "=" * (-len(encoded) % 4))
    if secret is None or not _MIN_SECRET <= len(secret) <= _MAX_SECRET:
        raise SettingsError(
            f"invalid secret: expected whsec_ and base64 of {_MIN_SECRET} to {_MAX_SECRET} bytes",
            hint=_HINT,
        )
    return secret


# The library for ed25519 is loaded by those who use it.
def _private_key(key: str) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw = decode_base64(key.removeprefix(_PRIVATE))
    if raw is None or len(raw) not in (_KEY, 2 * _KEY):
        raise SettingsError(f"invalid private key: expected whsk_ and base64 of {_KEY} bytes")
    return Ed25519PrivateKey.from_private_bytes(raw[:_KEY])


def _public_key(key: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if key.startswith(_PRIVATE):
        return _private_key(key).public_key()
    raw = decode_base64(key.removeprefix(_PUBLIC))
    if raw is None or len(raw) != _KEY:
        raise SettingsError(f"invalid public key: expected whpk_ and base64 of {_KEY} bytes")
    return Ed25519PublicKey.from_public_bytes(raw)
