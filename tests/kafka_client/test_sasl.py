"""SCRAM as in the RFCs, and what the client does with a server that cheats."""

from __future__ import annotations

import pytest

from tidemill.kafka_client.errors import ConnectionRejectedError
from tidemill.kafka_client.sasl import Scram, oauthbearer, plain

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    return Scram("sha256", "user", "pencil", NONCE)


def test_the_exchange_of_the_rfc() -> None:
    client = scram()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(SERVER_FIRST) == CLIENT_FINAL
    client.check(SERVER_FINAL)


def test_a_server_without_the_password_is_rejected() -> None:
    client = scram()
    client.final(SERVER_FIRST)
    with pytest.raises(ConnectionRejectedError, match="does not know the password"):
        client.check(SERVER_FINAL.replace(b"6rri", b"7rri"))
    with pytest.raises(ConnectionRejectedError, match="invalid-proof"):
        client.check(b"e=invalid-proof")
    with pytest.raises(ConnectionRejectedError, match="does not know"):
        scram().check(SERVER_FINAL)  # before it has seen the proof


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",  # no nonce of the server
        SERVER_FIRST.replace(b"i=4096", b"i=1"),
        SERVER_FIRST.replace(b"i=4096", b"i=2000000000"),
        SERVER_FIRST.replace(b"i=4096", b"i=x"),
        SERVER_FIRST.replace(b"s=W22", b"s=?"),
        b"m=extension," + SERVER_FIRST,
    ],
)
def test_an_invalid_challenge_is_rejected(message: bytes) -> None:
    with pytest.raises(ConnectionRejectedError, match=r"SCRAM"):
        scram().final(message)


def test_names_are_escaped_and_plain_is_one_message() -> None:
    assert Scram("sha512", "a=b,c", "x", "n").first() == b"n,,n=a=3Db=2Cc,r=n"
    assert plain("üser", "pass") == b"\0\xc3\xbcser\0pass"


def test_the_first_message_with_a_token() -> None:
    assert oauthbearer("vF9dft4qmT.==", {}) == b"n,,\1auth=Bearer vF9dft4qmT.==\1\1"
    more = oauthbearer("t", {"traceId": "12 3", "logicalCluster": "lkc"})
    assert more == b"n,,\1auth=Bearer t\1traceId=12 3\1logicalCluster=lkc\1\1"


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("a b", {}),
        ("a\1auth=Bearer b", {}),
        ("t\n", {}),
        ("t", {"auth": "Bearer b"}),
        ("t", {"a1": "x"}),
        ("t", {"a": ""}),
        ("t", {"a": "x\1b=y"}),
    ],
)
def test_a_token_that_would_change_the_message_is_refused(
    token: str, extensions: dict[str, str]
) -> None:
    with pytest.raises(ConnectionRejectedError, match="malformed"):
        oauthbearer(token, extensions)
