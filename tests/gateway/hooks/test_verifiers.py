"""Verifiers: the senders' vectors, their libraries as peers, and random headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
import stripe
import svix
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from slack_sdk.signature import Clock, SignatureVerifier
from twilio.request_validator import RequestValidator

from tidemill.connect.webhooks.signatures import (
    MAX_SIGNATURES,
    SignatureError,
    Signer,
    new_key_pair,
)
from tidemill.errors import SettingsError
from tidemill.gateway.hooks.mapping import Delivery
from tidemill.gateway.hooks.settings import HookEntry
from tidemill.gateway.hooks.verifiers import VERIFIERS, Verifier, make_verifier

NOW = 1_700_000_000
SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
STANDARD = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
URL = "https://hooks.example.com/hooks/it?a=1"
BODY = b'{"id": "evt_1", "event_id": "Ev1", "n": 1}'


def entry(verifier: str, **more: Any) -> HookEntry:
    secrets = [] if verifier == "none" else ["${env:HOOK_SECRET}"]
    given = {"secrets": secrets, **more}
    return HookEntry.model_validate({"name": "it", "topic": "t", "verifier": verifier, **given})


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.setenv("HOOK_STANDARD", STANDARD)


def delivery(
    headers: Mapping[str, str], body: bytes = BODY, url: str = URL, method: str = "POST"
) -> Delivery:
    small = {name.lower(): value for name, value in headers.items()}
    return Delivery(method, url, small, body, {}, url.partition("?")[2])


def digest(text: bytes, secret: str = SECRET, name: str = "sha256") -> str:
    return hmac.new(secret.encode(), text, name).hexdigest()


def refuse(
    verifier: Verifier, request: Delivery, match: str | None = None, now: float = NOW
) -> None:
    with pytest.raises(SignatureError, match=match):
        verifier.verify(request, now)


# --- vectors and libraries -----------------------------------------------------------------------


def test_github_has_the_vector_of_its_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "It's a Secret to Everybody")
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"X-Hub-Signature-256": signature, "X-GitHub-Delivery": "72d3162e"}
    verifier = make_verifier(entry("github"))
    assert verifier.verify(delivery(headers, b"Hello, World!"), NOW) == "72d3162e"
    refuse(verifier, delivery(headers, b"Hello, World"), "no signature matches")
    without_prefix = {**headers, "X-Hub-Signature-256": signature[7:]}
    refuse(verifier, delivery(without_prefix, b"Hello, World!"), "no signature matches")


def test_slack_has_the_vector_of_its_documentation_and_agrees_with_its_library() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&"
        b"channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&"
        b"command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands"
        b"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    headers = {"X-Slack-Request-Timestamp": "1531420618", "X-Slack-Signature": signature}
    verifier = make_verifier(entry("slack"))
    assert verifier.verify(delivery(headers, body), 1531420618) is None
    refuse(verifier, delivery(headers, body), "more than 300 s")
    peer = SignatureVerifier(SECRET)
    signed = peer.generate_signature(timestamp=str(NOW), body=BODY)
    assert signed is not None
    ours = {"X-Slack-Request-Timestamp": str(NOW), "X-Slack-Signature": signed}
    assert verifier.verify(delivery(ours), NOW + 299) == "Ev1"

    class Late(Clock):
        def now(self) -> float:
            return NOW + 301

    assert not SignatureVerifier(SECRET, Late()).is_valid_request(BODY, ours)
    refuse(verifier, delivery(ours), "more than 300 s", NOW + 301)


def test_stripe_agrees_with_its_library() -> None:
    verifier = make_verifier(entry("stripe"))
    header = stripe.WebhookSignature.generate_signature_header(BODY.decode(), SECRET, NOW)
    assert verifier.verify(delivery({"Stripe-Signature": header}), NOW) == "evt_1"
    # While a secret is replaced Stripe signs with both; v0 is for its tests.
    time, ours = header.split(",")
    both = f"{time},v1={digest(b'x')},{ours},v0={digest(b'y')}"
    assert verifier.verify(delivery({"Stripe-Signature": both}), NOW) == "evt_1"
    for malformed in (ours, time, f"{time},{time},{ours}", f"{time},v0={ours[3:]}", ",", "t=,v1="):
        refuse(verifier, delivery({"Stripe-Signature": malformed}))
    refuse(verifier, delivery({"Stripe-Signature": header}), "more than 300 s", NOW - 301)
    refuse(verifier, delivery({"Stripe-Signature": header}), "more than 300 s", NOW + 301)


def test_shopify_signs_the_body_as_base64() -> None:
    signature = base64.b64encode(bytes.fromhex(digest(BODY))).decode()
    headers = {"X-Shopify-Hmac-SHA256": signature, "X-Shopify-Webhook-Id": "b54557e4"}
    verifier = make_verifier(entry("shopify"))
    assert verifier.verify(delivery(headers), NOW) == "b54557e4"
    refuse(verifier, delivery({**headers, "X-Shopify-Hmac-SHA256": digest(BODY)}))


def test_twilio_has_the_vector_of_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "12345")
    form = {
        "CallSid": "CA1234567890ABCDE",
        "Digits": "1234",
        "From": "+14158675309",
        "To": "+18005551212",
        "Caller": "+14158675309",
    }
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    headers = {
        "X-Twilio-Signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8=",
        "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
        "I-Twilio-Idempotency-Token": "token-1",
    }
    verifier = make_verifier(entry("twilio"))
    body = urlencode(form).encode()
    assert verifier.verify(delivery(headers, body, url), NOW) == "token-1"
    assert RequestValidator("12345").validate(url, form, headers["X-Twilio-Signature"])
    refuse(verifier, delivery(headers, body + b"&x=1", url), "no signature matches")
    refuse(verifier, delivery(headers, body, url + "1"), "no signature matches")
    refuse(verifier, delivery(headers, b"x" * 100, url), "malformed")
    refuse(verifier, delivery(headers, b"&".join([b"a=1"] * 1001), url), "malformed")
    refuse(verifier, delivery({**headers, "Content-Type": "text/plain"}, body, url), "a form")


@pytest.mark.parametrize("algorithm", [None, "HMAC_SHA256"])
@pytest.mark.parametrize("port", ["", ":443", ":8443"])
def test_twilio_agrees_with_its_library_on_forms_and_ports(
    port: str, algorithm: str | None
) -> None:
    verifier, peer = make_verifier(entry("twilio")), RequestValidator(SECRET)
    url = f"https://hooks.example.com{port}/hooks/it"
    form = {"Body": "Grüße & mehr", "Empty": "", "To": "+1"}
    headers = {
        "X-Twilio-Signature": peer.compute_signature(url, form, algorithm),
        "Content-Type": "application/x-www-form-urlencoded",
    }
    if algorithm is not None:
        settings = f"key=webhooks_sharedkey_1,algorithm={algorithm}"
        headers["X-Twilio-Webhooks-Signature-Settings"] = settings
    body = urlencode(form).encode()
    assert verifier.verify(delivery(headers, body, url), NOW) is None
    for other in ({":443"}, {""}) if port != ":8443" else ():
        (new,) = other
        same = url.replace(f".com{port}/", f".com{new}/")
        assert verifier.verify(delivery(headers, body, same), NOW) is None
    unknown = {**headers, "X-Twilio-Webhooks-Signature-Settings": "algorithm=MD5"}
    refuse(verifier, delivery(unknown, body, url), "not supported")


def test_twilio_signs_json_by_a_digest_in_the_url() -> None:
    url = f"https://hooks.example.com/hooks/it?bodySHA256={hashlib.sha256(BODY).hexdigest()}"
    signature = RequestValidator(SECRET).compute_signature(url, {})
    headers = {"X-Twilio-Signature": signature, "Content-Type": "application/json"}
    verifier = make_verifier(entry("twilio"))
    assert verifier.verify(delivery(headers, BODY, url), NOW) is None
    refuse(verifier, delivery(headers, BODY + b" ", url), "not that of bodySHA256")


@pytest.mark.parametrize("prefix", ["webhook-", "svix-"])
def test_standard_webhooks_have_a_signed_id(prefix: str) -> None:
    verifier = make_verifier(entry("standard", secrets=["${env:HOOK_STANDARD}"]))
    headers = {
        name.replace("webhook-", prefix): value
        for name, value in Signer([STANDARD]).headers("msg_1", NOW, BODY).items()
    }
    assert verifier.verify(delivery(headers), NOW) == "msg_1"
    # An id that is not signed must not replace it.
    other = {"webhook-id": "msg_2", "svix-id": "msg_2"}
    assert verifier.verify(delivery({**other, **headers}), NOW) == "msg_1"


def test_svix_agrees_on_a_public_key_and_on_several_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private, public = new_key_pair()
    monkeypatch.setenv("HOOK_PUBLIC", public)
    both = ["${env:HOOK_PUBLIC}", "${env:HOOK_STANDARD}"]
    verifier = make_verifier(entry("standard", secrets=both))
    for key in (private, STANDARD):
        headers = Signer([key]).headers("msg_1", NOW, BODY)
        assert verifier.verify(delivery(headers), NOW) == "msg_1"
    # Svix has no v1a.
    peer = svix.Webhook(STANDARD)
    signature = peer.sign("msg_1", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    assert signature == Signer([STANDARD]).headers("msg_1", NOW, BODY)["webhook-signature"]


@pytest.mark.parametrize(
    ("more", "header"),
    [
        ({"header": "X-Sig"}, digest(BODY)),
        ({"header": "X-Sig"}, digest(BODY).upper()),
        ({"header": "X-Sig", "prefix": "v1="}, f"v1={digest(b'')},v1={digest(BODY)}"),
        ({"header": "X-Sig", "prefix": "v1="}, f"v0=abc v1={digest(BODY)}"),
        ({"header": "X-Sig", "digest": "sha512"}, digest(BODY, name="sha512")),
        ({"header": "X-Sig", "digest": "sha1"}, digest(BODY, name="sha1")),
        (
            {"header": "X-Sig", "encoding": "base64"},
            base64.b64encode(bytes.fromhex(digest(BODY))).decode(),
        ),
        ({"header": "X-Sig", "timestamp_header": "X-Time"}, digest(b"%d.%s" % (NOW, BODY))),
        (
            {"header": "X-Sig", "timestamp_header": "X-Time", "signed": "a{body}b{timestamp}c"},
            digest(b"a%sb%dc" % (BODY, NOW)),
        ),
    ],
)
def test_any_hmac_can_be_described(more: dict[str, str], header: str) -> None:
    verifier = make_verifier(entry("hmac", **more))
    request = delivery({"X-Sig": header, "X-Time": str(NOW)})
    assert verifier.verify(request, NOW) is None
    refuse(verifier, delivery({"X-Sig": header, "X-Time": str(NOW)}, BODY + b" "))
    if "timestamp_header" in more:
        refuse(verifier, request, "more than 300 s", NOW + 301)
        refuse(verifier, delivery({"X-Sig": header}), "x-time is missing")


def test_a_token_is_compared_whole() -> None:
    verifier = make_verifier(entry("token", header="Authorization", prefix="Bearer "))
    for valid in (f"Bearer {SECRET}", f"bearer {SECRET}"):
        assert verifier.verify(delivery({"Authorization": valid}), NOW) is None
    for wrong in (SECRET, f"Bearer {SECRET[:-1]}", "Bearer ", f"Basic {SECRET}", "Bearer é"):
        refuse(verifier, delivery({"Authorization": wrong}))
    refuse(verifier, delivery({}), "authorization is missing")


def test_a_secret_can_be_replaced_while_both_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_NEW", "new")
    verifier = make_verifier(entry("github", secrets=["${env:HOOK_NEW}", "${env:HOOK_SECRET}"]))
    for secret in (SECRET, "new"):
        headers = {"X-Hub-Signature-256": f"sha256={digest(BODY, secret)}"}
        assert verifier.verify(delivery(headers), NOW) is None


def test_none_verifies_nothing() -> None:
    assert make_verifier(entry("none")).verify(delivery({}), NOW) is None


# --- hostile headers -----------------------------------------------------------------------------

HEADERS = [
    *("x-hub-signature-256", "stripe-signature", "x-slack-signature", "x-slack-request-timestamp"),
    *("x-shopify-hmac-sha256", "x-twilio-signature", "x-twilio-webhooks-signature-settings"),
    *("content-type", "webhook-id", "webhook-timestamp", "webhook-signature", "x-sig", "x-time"),
    *("svix-id", "svix-timestamp", "svix-signature", "authorization"),
]
PARTS = [
    *(
        "sha256=",
        "v0=",
        "v1,",
        "v1a,",
        "v1=",
        "t=",
        ",",
        " ",
        "=",
        str(NOW),
        "-1",
        "1e9",
        "١٦",
        "é",
    ),
    *(
        "\x00",
        "\ud800",
        "AAAA",
        "a" * 63,
        "a" * 64,
        "z" * 64,
        "Bearer ",
        "msg.1",
        "application/json",
    ),
    *("application/x-www-form-urlencoded", "algorithm=", "algorithm=HMAC_SHA256", "==", "%zz"),
]
values = st.lists(st.sampled_from(PARTS) | st.text(max_size=10), max_size=12).map("".join)
absurd = st.sampled_from(["a" * 100_000, "," * 4096, "v1=aa," * 600, "v1,AA " * 600, "t=1," * 900])
requests = st.dictionaries(st.sampled_from(HEADERS), values | absurd)
bodies = st.binary(max_size=30) | st.sampled_from([b"a=1", b"[" * 5000, b'{"id":' + b"9" * 5000])
MORE: dict[str, dict[str, Any]] = {
    "standard": {"secrets": ["${env:HOOK_STANDARD}"]},
    "hmac": {"header": "x-sig", "timestamp_header": "x-time", "prefix": "v1="},
    "token": {"header": "authorization", "prefix": "Bearer "},
}


@pytest.mark.parametrize("name", sorted(VERIFIERS.keys() - {"none"}))
def test_random_headers_raise_the_typed_error_only(name: str) -> None:
    verifier = make_verifier(entry(name, **MORE.get(name, {})))

    @given(requests, bodies, st.sampled_from([URL, "", "https://[", "x", URL + "?bodySHA256=é"]))
    def check(headers: dict[str, str], body: bytes, url: str) -> None:
        refuse(verifier, delivery(headers, body, url))

    check()
    for each in HEADERS:
        refuse(verifier, delivery({each: "v1=" + ",v1=".join(["aa"] * (MAX_SIGNATURES + 1))}))


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"verifier": "github", "secrets": []}, "needs secrets"),
        ({"verifier": "none", "secrets": ["${env:HOOK_SECRET}"]}, "has no secrets"),
        ({"verifier": "github", "secrets": ["plain"]}, "a secret as plain text"),
        ({"verifier": "github", "secrets": ["x${env:HOOK_SECRET}"]}, "a secret as plain text"),
        ({"verifier": "github", "secrets": ["${env:A}"] * 9}, "at most 8"),
        ({"verifier": "github", "header": "x"}, "has its own"),
        ({"verifier": "hmac"}, "needs header"),
        ({"verifier": "hmac", "header": "a b"}, "invalid name of a header"),
        ({"verifier": "hmac", "header": "x", "signed": "{timestamp}"}, "must contain {body}"),
        ({"verifier": "hmac", "header": "x", "signed": "{body}{timestamp}"}, "need each other"),
        ({"verifier": "github", "name": "a/b"}, "pattern"),
        ({"verifier": "github", "topic": "a b"}, "pattern"),
        ({"verifier": "github", "path": "/x"}, "parameters in braces"),
        ({"verifier": "github", "path": "/{a}/{a}"}, "occurs twice"),
        ({"verifier": "github", "key": "path:a"}, "not a parameter"),
        ({"verifier": "github", "key": "body"}, "pattern"),
        ({"verifier": "github", "key": "json:a..b"}, "pattern"),
        ({"verifier": "github", "headers": {"Webhook-Id": "method"}}, "by the gateway itself"),
        ({"verifier": "github", "format": "cloudevents", "delivery_id": "json:a"}, "source and id"),
        ({"verifier": "sha256"}, "Input should be"),
    ],
)
def test_an_invalid_hook_says_what_is_wrong(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        entry(**changed)
    assert message in str(raised.value)


def test_an_empty_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "")
    with pytest.raises(SettingsError, match="is empty"):
        make_verifier(entry("github"))
    monkeypatch.delenv("HOOK_SECRET")
    with pytest.raises(SettingsError, match="HOOK_SECRET is not set"):
        make_verifier(entry("github"))
    monkeypatch.setenv("HOOK_SECRET", "whsec_short")
    with pytest.raises(SettingsError, match="hook it: invalid secret"):
        make_verifier(entry("standard"))


def test_the_body_is_parsed_without_an_exception() -> None:
    deep = b"[" * 100_000
    for body in (
        deep,
        b"\xff",
        b'{"id": ' + b"9" * 10_000 + b"}",
        b"nan",
        json.dumps([1]).encode(),
    ):
        headers = {"Stripe-Signature": f"t={NOW},v1={digest(b'%d.%s' % (NOW, body))}"}
        assert make_verifier(entry("stripe")).verify(delivery(headers, body), NOW) is None
