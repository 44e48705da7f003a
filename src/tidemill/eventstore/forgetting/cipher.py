"""Master keys in a file, keys that they wrap, and content that keys seal. No I/O but the file.

AES-256-GCM (NIST SP 800-38D). The nonce of sealed content is derived from key, place and content,
as in a synthetic IV (RFC 5297): the same content at the same place is sealed to the same bytes, so
that an event that is appended again is the same, and different content never shares a nonce but by
a chance of 2 to the -96.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidemill.eventstore.forgetting.errors import KeyFileError, SealedContentError

KEY_BYTES = 32
_NONCE = 12
_NAMING = "naming"


def new_key() -> bytes:
    """Return a random key."""
    return os.urandom(KEY_BYTES)


@dataclass(frozen=True)
class Masters:
    """The keys of a key file, which are never in a topic.

    Attributes:
        current: the id of the key that wraps new keys.
        keys: all master keys by id; old ones unwrap what they have wrapped.
        naming: makes subjects' names unreadable in the topic of keys.
    """

    current: str
    keys: Mapping[str, bytes]
    naming: bytes

    def __repr__(self) -> str:
        return f"Masters(current={self.current!r}, {len(self.keys)} keys)"

    @classmethod
    def read(cls, path: Path | str) -> Masters:
        """Read a key file: ``naming:KEY``, then ``ID:KEY`` for each master key, oldest first.

        Raises:
            KeyFileError: it can't be read, or is malformed.
        """
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            hint = "Make one with: tidemill events keys init FILE"
            raise KeyFileError(f"can't read the key file {path}: {error}", hint=hint) from error
        keys: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, colon, text = line.partition(":")
            key = _decoded(text.strip())
            if not colon or not name or name in keys or len(key) != KEY_BYTES:
                raise KeyFileError(
                    f"key file {path}, line {number}: expected ID:KEY, each id once",
                    hint=f"A key has {KEY_BYTES} bytes in Base64.",
                )
            keys[name] = key
        naming = keys.pop(_NAMING, None)
        if naming is None or not keys:
            raise KeyFileError(f"key file {path} has no line 'naming', or no master key")
        return cls(list(keys)[-1], keys, naming)

    @staticmethod
    def create(path: Path | str) -> None:
        """Write a new key file that only its owner can read.

        Raises:
            KeyFileError: it exists, or can't be written.
        """
        text = f"# Keep a copy elsewhere: without it, all sealed content is lost.\n{_line(_NAMING)}"
        _write(Path(path), text + _line("1"), os.O_CREAT | os.O_EXCL)

    @staticmethod
    def add(path: Path | str) -> str:
        """Add a master key to a key file, and return its id: it wraps new keys from now on.

        Raises:
            KeyFileError: the file can't be read or written.
        """
        known = Masters.read(path).keys
        numbers = map(str, itertools.count(len(known) + 1))
        name = next(number for number in numbers if number not in known)
        end = "" if Path(path).read_bytes().endswith(b"\n") else "\n"
        _write(Path(path), end + _line(name), os.O_APPEND)
        return name

    def pseudonym(self, store: str, subject: str) -> str:
        """Return a name for a subject that says nothing about it."""
        return hmac.new(self.naming, f"{store}\0{subject}".encode(), hashlib.sha256).hexdigest()

    def wrap(self, key: bytes, about: str) -> str:
        """Return a key, encrypted with the current master key.

        Args:
            about: what the key belongs to: it can't be unwrapped for something else.
        """
        nonce = os.urandom(_NONCE)
        sealed = AESGCM(self.keys[self.current]).encrypt(nonce, key, about.encode())
        return base64.b64encode(nonce + sealed).decode()

    def unwrap(self, wrapped: str, master: str, about: str) -> bytes:
        """Return a key that was wrapped.

        Raises:
            KeyFileError: the master key is not in the file, or is another one.
        """
        if master not in self.keys:
            raise KeyFileError(
                f"the key file has no master key {master!r}",
                hint="Keep old master keys in the file as long as keys are wrapped with them.",
            )
        raw = _decoded(wrapped)
        try:
            return AESGCM(self.keys[master]).decrypt(raw[:_NONCE], raw[_NONCE:], about.encode())
        except (InvalidTag, ValueError) as error:
            raise KeyFileError(
                f"master key {master!r} does not unwrap a key: it is another key of that name"
            ) from error


def seal(key: bytes, content: bytes, place: str) -> str:
    """Return content as text that only the key opens, and only at its place.

    Args:
        place: the event and the field; it is authenticated, and not part of the text.
    """
    where = place.encode()
    derived = hashlib.sha256(b"nonce" + key).digest()
    told = hmac.new(derived, len(where).to_bytes(4, "big") + where + content, hashlib.sha256)
    nonce = told.digest()[:_NONCE]
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, content, where)).decode()


def unseal(key: bytes, text: str, place: str) -> bytes:
    """Return the content of a sealed text.

    Raises:
        SealedContentError: it is damaged, or was sealed at another place or with another key.
    """
    raw = _decoded(text)
    try:
        return AESGCM(key).decrypt(raw[:_NONCE], raw[_NONCE:], place.encode())
    except (InvalidTag, ValueError) as error:
        raise SealedContentError(
            "sealed content is damaged, or was moved from another event"
        ) from error


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _line(name: str) -> str:
    return f"{name}:{base64.b64encode(new_key()).decode()}\n"


def _write(path: Path, text: str, flags: int) -> None:
    try:
        file = os.open(path, os.O_WRONLY | flags, 0o600)
        with os.fdopen(file, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise KeyFileError(f"can't write the key file {path}: {error}") from error
