"""SCRAM keys: the vectors of the RFCs, and keys for users who do not exist."""

from __future__ import annotations

import base64
import hmac

import pytest

from tidemill.state.security.scram import credential, decoy, is_password
from tidemill.state.security.types import ScramMechanism

B64 = base64.b64decode
CLIENT_FIRST = "n=user,r=rOprNGfwEbeRWgbNEkqO"
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SHA_256, SHA_512 = ScramMechanism


def test_keys_sign_the_exchange_of_rfc_7677() -> None:
    keys = credential(SHA_256, "pencil", B64("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    auth = f"{CLIENT_FIRST},{SERVER_FIRST},c=biws,r={NONCE}".encode()
    proof = B64("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(keys.stored_key, auth, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hmac.digest(keys.server_key, auth, "sha256") == B64(
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )
    import hashlib

    assert hashlib.sha256(client_key).digest() == keys.stored_key


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_password_is_checked_against_its_keys(mechanism: ScramMechanism) -> None:
    keys = credential(mechanism, "geheim-ä", b"salt", 4096)
    assert is_password(mechanism, "geheim-ä", keys)
    assert not is_password(mechanism, "geheim-a", keys)
    assert not is_password(mechanism, "", keys)


def test_keys_of_unknown_users_look_like_others_and_are_the_same_each_time() -> None:
    one = decoy(SHA_512, "alice", b"secret", 8192)
    real = credential(SHA_512, "p", b"0123456789abcdef", 8192)
    assert one == decoy(SHA_512, "alice", b"secret", 8192)
    assert [len(each) for each in (one.salt, one.stored_key, one.server_key)] == [
        len(each) for each in (real.salt, real.stored_key, real.server_key)
    ]
    others = [
        decoy(SHA_512, "bob", b"secret", 8192),
        decoy(SHA_256, "alice", b"secret", 8192),
        decoy(SHA_512, "alice", b"another", 8192),
    ]
    assert one.salt not in {each.salt for each in others}
