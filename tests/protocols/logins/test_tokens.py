"""Tokens of OAUTHBEARER: what they must say, keys that change, and the answer of RFC 7628."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from tidemill.errors import SettingsError
from tidemill.protocols.logins import tokens as tokens_module
from tidemill.protocols.logins.contract import LoginFailedError
from tidemill.protocols.logins.oauthbearer import OAuthBearer
from tidemill.protocols.logins.settings import OauthSettings
from tidemill.protocols.logins.tokens import Tokens

KEY = RSAKey.generate_key(2048, {"kid": "1"})


def published(path: Path, *keys: Any) -> Path:
    """Write the public keys."""
    path.write_text(json.dumps(KeySet(list(keys)).as_dict(private=False)))
    return path


def damaged(path: Path) -> None:
    path.write_text("{")


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    return published(tmp_path / "keys.json", KEY)


def token(key: Any = KEY, alg: str = "RS256", kid: str = "1", **claims: object) -> str:
    about = {"sub": "alice", "exp": int(time.time()) + 60, **claims}
    return jwt.encode({"alg": alg, "kid": kid}, about, key, algorithms=[alg])


def first(text: str, acting: str = "") -> bytes:
    return f"n,{'a=' + acting if acting else ''},\1auth=Bearer {text}\1\1".encode()


async def test_a_token_is_a_login_until_it_expires(jwks: Path) -> None:
    login = OAuthBearer(Tokens(OauthSettings(jwks=str(jwks))))
    assert await login.step(first(token(exp=2_000_000_000), "alice")) == b""
    assert login.proved is not None
    assert (login.proved.user, login.proved.expires_at) == ("alice", 2_000_000_000)


async def test_a_refusal_is_answered_as_in_rfc_7628_and_must_be_confirmed(jwks: Path) -> None:
    login = OAuthBearer(Tokens(OauthSettings(jwks=str(jwks), scope="kafka")))
    answer = json.loads(await login.step(first(token(scope="other"))))
    assert answer == {"status": "invalid_token", "scope": "kafka"}
    with pytest.raises(LoginFailedError, match="lacks a scope"):
        await login.step(b"\1")
    assert login.proved is None


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": 1_000}, "expired"),
        ({"exp": None}, "no time of expiry"),
        ({"exp": "tomorrow"}, "not a time"),
        ({"exp": True}, "not a time"),
        ({"exp": 1e300}, "not a time"),
        ({"nbf": 32_000_000_000}, "not valid yet"),
        ({"sub": 5}, "no claim sub"),
        ({"sub": ""}, "empty"),
        ({"iss": "other"}, "another issuer"),
        ({"aud": ["other"]}, "another audience"),
        ({"aud": {"a": "broker"}}, "another audience"),
        ({"scope": ["a"]}, "lacks a scope"),
    ],
)
async def test_claims_that_do_not_fit(jwks: Path, claims: dict[str, Any], problem: str) -> None:
    wanted = OauthSettings(jwks=str(jwks), issuer="us", audience="x, broker", scope="kafka")
    good: dict[str, Any] = {"iss": "us", "aud": "broker", "scope": "other kafka"}
    checked = Tokens(wanted)
    assert (await checked.check(token(**good))).user == "alice"
    assert (await checked.check(token(**good | {"scope": ["kafka"]}))).user == "alice"
    with pytest.raises(LoginFailedError, match=problem):
        await checked.check(token(**good | claims))


async def test_clocks_can_differ_by_the_skew(jwks: Path) -> None:
    checked = Tokens(OauthSettings(jwks=str(jwks), clock_skew_seconds=30))
    now = int(time.time())
    assert await checked.check(token(exp=now - 20, nbf=now + 20))
    with pytest.raises(LoginFailedError, match="expired"):
        await checked.check(token(exp=now - 40))


async def test_only_signatures_by_a_known_key_count(jwks: Path) -> None:
    checked = Tokens(OauthSettings(jwks=str(jwks)))
    forged = RSAKey.generate_key(2048, {"kid": "1"})
    none = ".".join(
        encoded(json.dumps(each).encode())
        for each in ({"alg": "none"}, {"sub": "alice", "exp": 2_000_000_000})
    )
    head = encoded(b'{"alg": "HS256", "kid": "1"}') + "." + token().split(".")[1]
    public = KEY.as_pem(private=False)  # as a secret, which anyone can know
    confused = head + "." + encoded(hmac.digest(public, head.encode(), "sha256"))
    for bad in (
        token(forged),
        token(RSAKey.generate_key(2048, {"kid": "2"}), kid="2"),
        confused,
        none + ".",
        token()[:-4] + "AAAA",
        "a.b.c",
        "x" * 40_000,
    ):
        with pytest.raises(LoginFailedError):
            await checked.check(bad)


async def test_keys_that_change_are_read_again(jwks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Tokens(OauthSettings(jwks=str(jwks)))
    await checked.check(token())
    new = ECKey.generate_key("P-256", {"kid": "2"})
    published(jwks, KEY, new)
    with pytest.raises(LoginFailedError):  # not more often than every ten seconds
        await checked.check(token(new, "ES256", "2"))
    monkeypatch.setattr(tokens_module, "AGAIN_SECONDS", 0.0)
    assert (await checked.check(token(new, "ES256", "2"))).user == "alice"
    damaged(jwks)  # the old ones stay
    with pytest.raises(LoginFailedError):
        await checked.check(token(RSAKey.generate_key(2048, {"kid": "3"}), kid="3"))
    assert (await checked.check(token())).user == "alice"


@pytest.mark.parametrize(
    ("source", "problem"), [("", "needs oauth.jwks"), ("http://example.com/keys", "not encrypted")]
)
def test_a_source_that_can_not_be_trusted_is_refused(source: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        Tokens(OauthSettings(jwks=source))


async def test_without_keys_no_token_is_accepted(tmp_path: Path) -> None:
    checked = Tokens(OauthSettings(jwks=str(tmp_path / "missing")))
    with pytest.raises(LoginFailedError, match="can't be read"):
        await checked.check(token())


PIECES = st.sampled_from(
    [b"n,", b"a=alice", b",", b"\1", b"auth=", b"Bearer ", b"a.b.c", b"host=x", b"=", b"\0", b"y"]
)
MESSAGES = st.one_of(
    st.binary(max_size=64),
    st.lists(PIECES, max_size=12).map(b"".join),
    st.text(max_size=60).map(first),
    st.lists(st.binary(max_size=20), min_size=3, max_size=3).map(
        lambda parts: first(
            ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts)
        )
    ),
)
FILES: dict[str, Path] = {}


@settings(max_examples=150, deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=2))
def test_any_bytes_raise_the_typed_error_only(
    tmp_path_factory: pytest.TempPathFactory, messages: list[bytes]
) -> None:
    if not FILES:
        FILES["keys"] = published(tmp_path_factory.mktemp("keys") / "keys.json", KEY)
    login = OAuthBearer(Tokens(OauthSettings(jwks=str(FILES["keys"]))))

    async def steps() -> None:
        for message in messages:
            await login.step(message)

    with contextlib.suppress(LoginFailedError):
        asyncio.run(steps())
    assert login.proved is None


async def test_keys_are_not_taken_from_where_they_are_not_encrypted() -> None:
    keys = json.dumps(KeySet([KEY]).as_dict(private=False)).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b" /moved " in request:
            writer.write(b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:%d/keys\r\n\r\n" % port)
        else:
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + keys)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        assert await Tokens(OauthSettings(jwks=f"{url}/keys")).check(token())
        with pytest.raises(LoginFailedError, match="can't be read"):
            await Tokens(OauthSettings(jwks=f"{url}/moved")).check(token())
