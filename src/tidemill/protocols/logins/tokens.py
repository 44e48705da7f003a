"""Checks tokens of OAUTHBEARER: JSON Web Tokens, signed with a key of a JSON Web Key Set.

The keys are read from a file or a URL on a thread, and again when they are old or when a token has
a key that is not known. joserfc verifies signatures; it is imported when the broker starts with
OAUTHBEARER. Sources: RFC 7519, RFC 7517, RFC 8725, KIP-768.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from tidemill.errors import SettingsError
from tidemill.extras import require_extra
from tidemill.protocols.logins.contract import LoginFailedError, Proved, checked_name
from tidemill.protocols.logins.settings import OauthSettings

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
"""Signatures with a public key only: with others, who can check a token can make one."""
MOST_TOKEN = 32_768
MOST_KEYS_BYTES = 1 << 20
READ_SECONDS = 10.0
AGAIN_SECONDS = 10.0
"""Least time between two reads because of unknown keys."""

log = structlog.get_logger("tidemill.logins")


class Tokens:
    """Checks tokens by the settings.

    Args:
        now: seconds since the epoch.

    Raises:
        SettingsError: ``oauth.jwks`` is missing or is not a file or an https URL, or joserfc is
            not installed.
    """

    def __init__(self, settings: OauthSettings, now: Callable[[], float] = time.time) -> None:
        if not settings.jwks:
            raise SettingsError(
                "OAUTHBEARER needs oauth.jwks",
                hint="Set it to the file or the https URL with the keys of the issuer.",
            )
        _check_source(settings.jwks)
        require_extra("oauth")
        self._jwt: Any = importlib.import_module("joserfc.jwt")
        self._jwk: Any = importlib.import_module("joserfc.jwk")
        self._errors: Any = importlib.import_module("joserfc.errors")
        self._settings = settings
        self._audiences = {each.strip() for each in settings.audience.split(",") if each.strip()}
        self.scope = settings.scope
        self._now = now
        self._keys: Any = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def check(self, token: str, acting: str = "") -> Proved:
        """Return whose token it is.

        Args:
            acting: the user as whom the client wants to act; empty: that of the token.

        Raises:
            LoginFailedError: it is malformed, expired, not for this broker, not signed with a
                known key, or that of another user.
        """
        if len(token) > MOST_TOKEN:
            raise LoginFailedError("the token is too large")
        await self._read_keys(
            AGAIN_SECONDS if self._keys is None else self._settings.refresh_seconds
        )
        try:
            claims = self._claims(token)
        except _UnknownKeyError:
            await self._read_keys(AGAIN_SECONDS)
            claims = self._claims(token)
        proved = self._proved(claims)
        if acting and acting != proved.user:
            raise LoginFailedError("the authorization id is not the user of the token", acting)
        return proved

    def _claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token whose signature is valid."""
        if self._keys is None:
            raise LoginFailedError("the keys of the issuer can't be read")
        try:
            decoded = self._jwt.decode(token, self._keys, algorithms=ALGORITHMS)
        except self._errors.InvalidKeyIdError as error:
            raise _UnknownKeyError("the token is signed with an unknown key") from error
        except self._errors.BadSignatureError as error:
            raise _UnknownKeyError("the signature of the token is invalid") from error
        except (self._errors.JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise LoginFailedError(f"the token can't be read: {error}"[:200]) from error
        claims = decoded.claims
        if not isinstance(claims, dict):
            raise LoginFailedError("the claims of the token are not an object")
        return claims

    def _proved(self, claims: dict[str, Any]) -> Proved:
        settings, now = self._settings, self._now()
        user = claims.get(settings.user_claim)
        if not isinstance(user, str):
            raise LoginFailedError(f"the token has no claim {settings.user_claim}")
        checked_name(user)
        expires = _time(claims, "exp", user)
        if expires is None:
            raise LoginFailedError("the token has no time of expiry", user)
        if expires + settings.clock_skew_seconds <= now:
            raise LoginFailedError("the token has expired", user)
        for name in ("nbf", "iat"):
            begins = _time(claims, name, user)
            if begins is not None and begins - settings.clock_skew_seconds > now:
                raise LoginFailedError("the token is not valid yet", user)
        if settings.issuer and claims.get("iss") != settings.issuer:
            raise LoginFailedError("the token is from another issuer", user)
        if self._audiences and not self._audiences & set(_texts(claims.get("aud"))):
            raise LoginFailedError("the token is for another audience", user)
        scopes = claims.get(settings.scope_claim)
        given = scopes.split() if isinstance(scopes, str) else _texts(scopes)
        if not set(settings.scope.split()) <= set(given):
            raise LoginFailedError("the token lacks a scope", user)
        return Proved(user, expires)

    # --- keys ------------------------------------------------------------------------------------

    async def _read_keys(self, age: float) -> None:
        """Read the keys, if they are older than ``age`` seconds. Old keys stay after an error."""
        if self._keys is not None and self._lock.locked() and age > AGAIN_SECONDS:
            return  # another login reads them: the old ones are good for this one
        async with self._lock:  # one read at a time; the others find it done
            if time.monotonic() - self._read_at < age:
                return
            self._read_at = time.monotonic()
            try:
                text = await asyncio.to_thread(_read, self._settings.jwks)
                self._keys = self._jwk.KeySet.import_key_set(json.loads(text))
            except (OSError, ValueError, TypeError, KeyError, self._errors.JoseError) as error:
                log.error(
                    "oauth.keys_not_read",
                    source=self._settings.jwks,
                    error=str(error) or type(error).__name__,
                    hint="Known keys stay in use.",
                )


class _UnknownKeyError(LoginFailedError):
    """The token is signed with a key that is not known, perhaps not yet."""


def _check_source(source: str) -> None:
    """Refuse a source that others could replace on its way."""
    parts = urlsplit(source)
    if parts.scheme not in ("http", "https"):
        return
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme == "http" and not is_local:
        raise SettingsError(
            f"oauth.jwks {source} is not encrypted: who changes the keys on their way can make "
            "tokens",
            hint="Use an https URL, or a file.",
        )


def _read(source: str) -> bytes:
    if urlsplit(source).scheme not in ("http", "https"):
        with Path(source.removeprefix("file://")).open("rb") as file:
            return _limited(file.read(MOST_KEYS_BYTES + 1))
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *given: Any) -> Any:
            where = str(given[-1])
            if urlsplit(where).scheme != "https":
                raise ValueError(f"it is redirected to {where[:200]}, which is not encrypted")
            return super().redirect_request(*given)

    tls = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    opener = urllib.request.build_opener(tls, Redirects)
    with contextlib.closing(opener.open(source, timeout=READ_SECONDS)) as answer:
        return _limited(answer.read(MOST_KEYS_BYTES + 1))


def _limited(data: bytes) -> bytes:
    if len(data) > MOST_KEYS_BYTES:
        raise ValueError(f"more than {MOST_KEYS_BYTES} bytes")
    return data


def _time(claims: dict[str, Any], name: str, user: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise LoginFailedError(f"the claim {name} of the token is not a time", user)
    return float(value)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
