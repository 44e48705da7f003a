"""The mechanisms of SASL, without connections: vectors of the RFCs, an oracle, and any bytes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.kafka_client.sasl import Scram as ScramClient
from tidemill.protocols.logins.contract import Exchange, LoginFailedError, ScramKeys
from tidemill.protocols.logins.logins import AllUsers
from tidemill.protocols.logins.plain import Plain
from tidemill.protocols.logins.scram import Scram, derived
from tidemill.protocols.logins.users_file import FileUsers

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
USERS = AllUsers([FileUsers({"alice": "secret", "a=b,c": "x", "ü": "pässword"})])


class OneUser:
    """A user with given keys."""

    def __init__(self, name: str, keys: ScramKeys) -> None:
        self.name, self.known = name, keys

    def has_users(self) -> bool:
        return True

    async def keys(self, user: str, mechanism: str) -> tuple[ScramKeys, bool]:
        return self.known, user == self.name

    async def verify(self, user: str, password: str) -> bool:
        return False


async def test_the_exchange_of_rfc_7677() -> None:
    keys = derived("sha256", "pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    login = Scram("SCRAM-SHA-256", OneUser("user", keys), nonce)
    first = await login.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = await login.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert login.proved is not None
    assert login.proved.user == "user"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "secret"), ("a=b,c", "x")])
async def test_the_client_of_scramp_logs_in(mechanism: str, user: str, password: str) -> None:
    client = scramp.ScramClient([mechanism], user, password)
    login = Scram(mechanism, USERS)
    client.set_server_first((await login.step(client.get_client_first().encode())).decode())
    client.set_server_final((await login.step(client.get_client_final().encode())).decode())
    assert login.proved is not None
    assert login.proved.user == user


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_derived_keys_are_those_of_scramp(mechanism: str) -> None:
    salt = b"0123456789abcdef"
    theirs = scramp.ScramMechanism(mechanism).make_auth_info("secret", 4096, salt)
    ours = derived(mechanism[6:].lower().replace("-", ""), "secret", salt)
    assert (ours.salt, ours.stored_key, ours.server_key, ours.iterations) == theirs


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret")])
async def test_a_wrong_password_and_an_unknown_user_fail_at_the_same_step(
    mechanism: str, user: str, password: str
) -> None:
    client = ScramClient(mechanism[6:].lower().replace("-", ""), user, password)
    login = Scram(mechanism, USERS)
    final = client.final(await login.step(client.first()))
    with pytest.raises(LoginFailedError, match="unknown user or wrong password"):
        await login.step(final)
    assert login.proved is None


async def test_an_unknown_user_gets_the_same_salt_again() -> None:
    async def salt(user: str) -> bytes:
        return (await Scram("SCRAM-SHA-256", USERS).step(f"n,,n={user},r=abc".encode())).split(
            b","
        )[1]

    assert await salt("nobody") == await salt("nobody") != await salt("nemo")
    assert await salt("alice") == await salt("alice") != await salt("nobody")
    assert len(await salt("alice")) == len(await salt("nobody"))


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "PLAIN"])
async def test_an_unknown_user_costs_the_same_hashes(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for module, names in (
        (hashlib, ("pbkdf2_hmac", "new", "blake2b", "shake_256")),
        (hmac, ("digest", "compare_digest")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, counting(name, getattr(module, name)))

    async def fail(user: str) -> None:
        if mechanism == "PLAIN":
            await Plain(USERS).step(f"\0{user}\0wrong".encode())
            return
        login = Scram(mechanism, USERS)
        nonce = (await login.step(f"n,,n={user},r=abc".encode())).split(b",")[0]
        proof = base64.b64encode(bytes(32 if mechanism == MECHANISMS[0] else 64))
        await login.step(b"c=biws," + nonce + b",p=" + proof)

    async def hashes(user: str) -> Counter[str]:
        counts.clear()
        with pytest.raises(LoginFailedError):
            await fail(user)
        return Counter(counts)

    known = await hashes("alice")
    assert known == await hashes("nobody")
    assert sum(known.values()) >= 3


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",  # channel binding, which is not offered
        b"n,,m=x,n=alice,r=abc",  # a mandatory extension
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=alice,r=" + b"x" * 257,
        b"n,,n=" + b"x" * 2000 + b",r=abc",
        b"\xff",
    ],
)
async def test_invalid_first_messages_of_scram_are_refused(first: bytes) -> None:
    with pytest.raises(LoginFailedError):
        await Scram("SCRAM-SHA-256", USERS).step(first)


@pytest.mark.parametrize("change", ["nonce", "binding", "proof", "length"])
async def test_a_changed_final_message_of_scram_is_refused(change: str) -> None:
    client = ScramClient("sha256", "alice", "secret")
    login = Scram("SCRAM-SHA-256", USERS)
    final = client.final(await login.step(client.first())).decode()
    changed = {
        "nonce": final.replace(",p=", "x,p="),
        "binding": final.replace("c=biws", "c=eSws"),
        "proof": final.rpartition(",p=")[0] + ",p=" + base64.b64encode(bytes(32)).decode(),
        "length": final.rpartition(",p=")[0] + ",p=AAAA",
    }[change]
    with pytest.raises(LoginFailedError):
        await login.step(changed.encode())


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        (b"\0alice\0secret", True),
        (b"alice\0alice\0secret", True),
        (b"bob\0alice\0secret", False),
        (b"\0alice\0wrong", False),
        (b"\0alice\0", False),
        (b"\0\0secret", False),
        (b"\0nobody\0secret", False),
        (b"alice\0secret", False),
        (b"\0alice\0secret\0", False),
        ("\0ü\0pässword".encode(), True),
        (b"\0\xff\0secret", False),
    ],
)
async def test_plain(message: bytes, accepted: bool) -> None:
    login = Plain(USERS)
    if accepted:
        assert await login.step(message) == b""
        assert login.proved is not None
    else:
        with pytest.raises(LoginFailedError):
            await login.step(message)
        assert login.proved is None


# --- any bytes -----------------------------------------------------------------------------------


def _exchange(mechanism: str) -> Exchange:
    return Plain(USERS) if mechanism == "PLAIN" else Scram(mechanism, USERS)


PIECES = st.sampled_from(
    [
        b"n,,",
        b"y,,",
        b"n=",
        b"r=",
        b"c=biws",
        b"p=",
        b",",
        b"=",
        b"=2C",
        b"alice",
        b"\0",
        b"\x01",
        b"a",
    ]
)
MESSAGES = st.one_of(st.binary(max_size=64), st.lists(PIECES, max_size=12).map(b"".join))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@settings(max_examples=150, deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=3))
def test_any_bytes_raise_the_typed_error_only(mechanism: str, messages: list[bytes]) -> None:
    login = _exchange(mechanism)

    async def steps() -> None:
        for message in messages:
            await login.step(message)

    with contextlib.suppress(LoginFailedError):
        asyncio.run(steps())
    assert login.proved is None or messages[0].endswith(b"secret")
