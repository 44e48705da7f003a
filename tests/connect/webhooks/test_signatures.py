"""Signatures of Standard Webhooks: the vectors of its repository, and two libraries as peers."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
import standardwebhooks
import svix
from hypothesis import given
from hypothesis import strategies as st

from tidemill.connect.base.secrets import Secret
from tidemill.connect.webhooks.signatures import (
    MAX_HEADER,
    MAX_SIGNATURES,
    SignatureError,
    Signer,
    Verifier,
    new_key_pair,
    new_secret,
    public_key,
)
from tidemill.errors import SettingsError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PRIVATE = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
ID, TIME, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
V1 = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
V1A = "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="
"""The vectors of the standard's libraries, for the secret and for the private key above."""
VERIFIERS = [Verifier([SECRET]), Verifier([public_key(PRIVATE)])]


def signed(valid: str = f"{V1} {V1A}", **changed: str) -> dict[str, str]:
    headers = {"webhook-id": ID, "webhook-timestamp": str(TIME), "webhook-signature": valid}
    return headers | {f"webhook-{name}": value for name, value in changed.items()}


@pytest.mark.parametrize(("key", "signature"), [(SECRET, V1), (PRIVATE, V1A)])
def test_signatures_are_those_of_the_standard(key: str, signature: str) -> None:
    headers = Signer([key]).headers(ID, TIME, BODY)
    assert headers == signed(signature)
    verifier = Verifier([public_key(key) if key == PRIVATE else key])
    assert verifier.verify(headers, BODY, TIME) == ID


def test_each_of_several_keys_is_valid_while_a_secret_is_replaced() -> None:
    new, (private, public) = new_secret(), new_key_pair()
    headers = Signer([new, SECRET, private]).headers(ID, TIME, BODY)
    for keys in ([SECRET], [new], [public], [new_secret(), new], [private]):
        assert Verifier(keys).verify(headers, BODY, TIME) == ID
    with pytest.raises(SignatureError, match="no signature matches"):
        Verifier([new_secret(), new_key_pair()[1]]).verify(headers, BODY, TIME)


@pytest.mark.parametrize("body", [b"", b"\xff\x00not text", "é".encode(), BODY])
def test_libraries_and_we_agree(body: bytes) -> None:
    secret, now = new_secret(), datetime.now(UTC)
    headers = Signer([secret]).headers("evt_1", int(now.timestamp()), body)
    if b"\xff" not in body:  # these libraries sign text only
        for library in (standardwebhooks.Webhook, svix.Webhook):
            peer = library(secret.reveal())
            if body == BODY:
                peer.verify(body, headers)
            assert peer.sign("evt_1", now, body.decode()) == headers["webhook-signature"]
    assert Verifier([secret]).verify(headers, body, now.timestamp()) == "evt_1"


def test_headers_of_svix_have_their_own_prefix() -> None:
    headers = {name.replace("webhook", "svix"): value for name, value in signed(V1).items()}
    assert VERIFIERS[0].verify(headers, BODY, TIME, prefix="svix-") == ID


INVALID: dict[str, tuple[dict[str, str], str]] = {
    "no id": ({"id": ""}, "id is missing"),
    "an id with a dot": ({"id": "msg.1"}, "id is malformed"),
    "an id that is not ASCII": ({"id": "é"}, "id is malformed"),
    "a long id": ({"id": "m" * 257}, "id is malformed"),
    "no time": ({"timestamp": ""}, "timestamp is missing"),
    "a time that is not a number": ({"timestamp": "abc"}, "time of the signature is malformed"),
    "a time in other digits": ({"timestamp": "١٦١٤٢٦٥٣٣٠"}, "malformed"),
    "a negative time": ({"timestamp": "-1"}, "malformed"),
    "a time with a fraction": ({"timestamp": f"{TIME}.5"}, "malformed"),
    "a time that is a million digits": ({"timestamp": "1" * 10**6}, "longer than"),
    "a time too long ago": ({"timestamp": str(TIME - 301)}, "more than 300 s"),
    "a time in the future": ({"timestamp": str(TIME + 301)}, "more than 300 s"),
    "no signature": ({"signature": ""}, "signature is missing"),
    "a version only": ({"signature": "v1"}, "no signature matches"),
    "an empty signature": ({"signature": "v1,"}, "no signature matches"),
    "two spaces and no base64": ({"signature": "v1,!!  v1"}, "no signature matches"),
    "not ASCII": ({"signature": "v1,é"}, "no signature matches"),
    "spaces only": ({"signature": "   "}, "no signature matches"),
    "another version": ({"signature": V1.replace("v1", "v2")}, "no signature matches"),
    "v1 as v1a": ({"signature": V1.replace("v1", "v1a")}, "no signature matches"),
    "v1a as v1": ({"signature": V1A.replace("v1a", "v1")}, "no signature matches"),
    "a short one": ({"signature": "v1,g0hM"}, "no signature matches"),
    "a signature twice as long": ({"signature": "v1," + V1[3:-1] * 2}, "no signature matches"),
    "too many": ({"signature": " ".join(["v1,AAAA"] * (MAX_SIGNATURES + 1))}, "more than 8"),
    "too long": ({"signature": "v1," + "A" * MAX_HEADER}, "longer than"),
}


@pytest.mark.parametrize("case", INVALID)
def test_a_malformed_header_is_a_typed_error(case: str) -> None:
    changed, message = INVALID[case]
    for verifier in VERIFIERS:
        with pytest.raises(SignatureError, match=message):
            verifier.verify(signed(**changed), BODY, TIME)


def test_a_valid_signature_is_found_among_invalid_ones() -> None:
    headers = signed(f"v1  v1,!! v1,AAAA v2,AAAA {V1A} {V1}")
    for verifier in VERIFIERS:
        assert verifier.verify(headers, BODY, TIME) == ID
        for other in (BODY + b" ", b"", BODY.upper()):
            with pytest.raises(SignatureError):
                verifier.verify(headers, other, TIME)
        with pytest.raises(SignatureError):
            verifier.verify({**headers, "webhook-id": "msg_2"}, BODY, TIME)
        with pytest.raises(SignatureError):
            verifier.verify({**headers, "webhook-timestamp": str(TIME + 1)}, BODY, TIME)


names = st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"])
texts = st.text(max_size=40) | st.sampled_from([ID, str(TIME), V1, V1A, "v1,", " ", "\x00"])


@given(st.dictionaries(names, texts), st.binary(max_size=20))
def test_random_headers_raise_the_typed_error_only(headers: Mapping[str, str], body: bytes) -> None:
    for verifier in VERIFIERS:
        with pytest.raises(SignatureError):
            verifier.verify(headers, body, TIME)


@given(st.binary(min_size=16, max_size=200), st.binary(max_size=300))
def test_a_shared_secret_of_any_length_signs_as_hmac_does(secret: bytes, body: bytes) -> None:
    found = Signer([base64.b64encode(secret).decode()]).headers("m", 1, body)["webhook-signature"]
    expected = hmac.digest(secret, b"m.1." + body, "sha256")
    assert found == "v1," + base64.b64encode(expected).decode()


@given(st.binary(max_size=200), st.from_regex(r"[0-9A-Za-z_-]{1,50}", fullmatch=True))
def test_what_is_signed_is_verified(body: bytes, message_id: str) -> None:
    headers = Signer([SECRET, PRIVATE]).headers(message_id, TIME, body)
    for verifier in VERIFIERS:
        assert verifier.verify(headers, body, TIME + 299) == message_id


SHORT = base64.b64encode(b"x" * 8).decode()


@pytest.mark.parametrize(
    "key", ["", "whsec_", f"whsec_{SHORT}", "whsec_é", "whpk_AAAA", "whsk_AAAA", "whsk_!", "whpk_é"]
)
def test_an_invalid_key_is_a_settings_error_that_does_not_show_it(key: str) -> None:
    for make in (Signer, Verifier):
        with pytest.raises(SettingsError) as raised:
            make([key])
        assert not key or key not in str(raised.value) or key in ("whsec_",)


def test_a_public_key_can_not_sign_and_no_key_is_an_error() -> None:
    with pytest.raises(SettingsError, match="can't sign"):
        Signer([public_key(PRIVATE)])
    for make in (Signer, Verifier):
        with pytest.raises(SettingsError, match="no secret"):
            make([])
    with pytest.raises(ValueError, match="without a dot"):
        Signer([SECRET]).headers("a.b", TIME, BODY)


def test_new_secrets_hide_themselves() -> None:
    secret, (private, public) = new_secret(), new_key_pair()
    assert isinstance(secret, Secret)
    assert isinstance(private, Secret)
    assert "whs" not in f"{secret!r}{private}{[secret]}"
    assert public_key(private) == public
