"""Verify requests of senders: one class per way to sign, and a table of the senders that use it.

The bytes of the body are verified as they arrived. A header that is missing, malformed, too long or
wrong is a ``SignatureError``, and no other exception. Must not know: what is stored, the clock.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

from tidemill.connect.base.secrets import Secret, resolve
from tidemill.connect.webhooks import signatures
from tidemill.connect.webhooks.signatures import (
    MAX_SIGNATURES,
    SignatureError,
    check_time,
    decode_base64,
    header,
)
from tidemill.errors import SettingsError
from tidemill.gateway.hooks.mapping import Delivery, Select, selector
from tidemill.gateway.hooks.settings import HookEntry

MAX_FIELDS = 1000
"""Fields of a form that are verified. Twilio signs them one by one."""
_BODY, _TIMESTAMP = "{body}", "{timestamp}"


class Verifier(Protocol):
    """Verifies the requests of one sender."""

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request.

        Args:
            now_s: the time in seconds since 1970.

        Returns:
            What identifies the delivery, if the sender has something for it.

        Raises:
            SignatureError: the request must not be accepted.
        """
        ...


@dataclass(frozen=True)
class Hmac:
    """HMAC of the body, in a header.

    Attributes:
        secrets: the keys; one of them has signed.
        header: the header with the signatures, separated by commas or spaces.
        prefix: what is before each signature.
        encoding: ``hex`` or ``base64``.
        digest: the name of the hash function.
        signed: what is signed, with ``{body}`` and ``{timestamp}``.
        timestamp_header: the header with the signed time, or empty.
        delivery_id: takes the id from a request, which is the sender's but not always signed.
    """

    secrets: Sequence[bytes] = field(repr=False)
    header: str
    prefix: str = ""
    encoding: str = "hex"
    digest: str = "sha256"
    signed: str = _BODY
    timestamp_header: str = ""
    tolerance_s: int = signatures.TOLERANCE_S
    delivery_id: Select = lambda _: None

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``)."""
        given = _decode_all(header(delivery.headers, self.header), self.prefix, self.encoding)
        timestamp = ""
        if self.timestamp_header:
            timestamp = header(delivery.headers, self.timestamp_header)
            check_time(timestamp, now_s, self.tolerance_s)
        before, _, after = self.signed.partition(_BODY)
        signed = b"".join(
            (
                before.replace(_TIMESTAMP, timestamp).encode(),
                delivery.body,
                after.replace(_TIMESTAMP, timestamp).encode(),
            )
        )
        _match(self.secrets, [signed], given, self.digest)
        return self.delivery_id(delivery)


@dataclass(frozen=True)
class Stripe:
    """Stripe: the time and the signatures are in one header, ``t=…,v1=…,v1=…``.

    Source: https://docs.stripe.com/webhooks/signature
    """

    secrets: Sequence[bytes] = field(repr=False)
    tolerance_s: int = signatures.TOLERANCE_S

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``). The id is that of the event."""
        parts = header(delivery.headers, "stripe-signature").split(",")
        pairs = [part.strip().partition("=") for part in parts]
        times = [value for name, _, value in pairs if name == "t"]
        if len(times) != 1:
            raise SignatureError("the header stripe-signature needs one time t=")
        check_time(times[0], now_s, self.tolerance_s)
        given = _decode([value for name, _, value in pairs if name == "v1"], "hex")
        _match(self.secrets, [b"%s.%s" % (times[0].encode(), delivery.body)], given, "sha256")
        return selector("json:id")(delivery)


@dataclass(frozen=True)
class Twilio:
    """Twilio: the URL and the fields of the form are signed; with JSON, a digest in the URL.

    Source: https://www.twilio.com/docs/usage/webhooks/webhooks-security
    """

    secrets: Sequence[bytes] = field(repr=False)

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``). Twilio signs no time."""
        given = _decode_all(header(delivery.headers, "x-twilio-signature"), "", "base64")
        digest = self._digest(delivery.headers.get("x-twilio-webhooks-signature-settings", ""))
        fields = self._fields(delivery)
        # It is not certain whether Twilio signs the URL with its port.
        urls = {delivery.url, _with_port(delivery.url), _without_port(delivery.url)}
        signed = [(url + fields).encode("utf-8", "replace") for url in sorted(urls)]
        _match(self.secrets, signed, given, digest)
        return delivery.headers.get("i-twilio-idempotency-token")

    def _digest(self, settings: str) -> str:
        """Return the hash function: SHA-1, or that of the key which a header describes."""
        pairs = (part.strip().partition("=") for part in settings.split(",", 20))
        name = next((value for key, _, value in pairs if key == "algorithm"), "HMAC_SHA1")
        digest = {"HMAC_SHA1": "sha1", "HMAC_SHA256": "sha256"}.get(name.upper())
        if digest is None:
            raise SignatureError("the algorithm of the signature is not supported")
        return digest

    def _fields(self, delivery: Delivery) -> str:
        """Return what is signed behind the URL.

        Raises:
            SignatureError: the form is malformed, or the digest of the body is not that in the URL.
        """
        digest = delivery.parameters.get("bodySHA256")
        if digest is not None:
            found = hashlib.sha256(delivery.body).hexdigest()
            if not hmac.compare_digest(found.encode(), digest.lower().encode("utf-8", "replace")):
                raise SignatureError("the body is not that of bodySHA256 in the URL")
            return ""
        if not delivery.body:
            return ""
        kind = delivery.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise SignatureError("Twilio signs a form, or has bodySHA256 in the URL")
        try:
            text = delivery.body.decode("ascii")
            pairs = parse_qsl(
                text, keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_FIELDS
            )
        except ValueError:
            raise SignatureError("the form is malformed") from None
        return "".join(name + value for name, value in sorted(set(pairs)))


@dataclass(frozen=True)
class Standard:
    """Standard Webhooks, with its headers or with those of Svix."""

    verifier: signatures.Verifier
    tolerance_s: int = signatures.TOLERANCE_S

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``). The id is signed."""
        prefix = "webhook-" if signatures.SIGNATURE in delivery.headers else "svix-"
        return self.verifier.verify(
            delivery.headers, delivery.body, now_s, self.tolerance_s, prefix
        )


@dataclass(frozen=True)
class Token:
    """A secret in a header, e.g. GitLab's ``X-Gitlab-Token``. It signs nothing."""

    secrets: Sequence[bytes] = field(repr=False)
    header: str
    prefix: str = ""

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``)."""
        given = header(delivery.headers, self.header)
        if not given.lower().startswith(self.prefix.lower()):
            raise SignatureError(f"the header {self.header} is malformed")
        token = given[len(self.prefix) :].strip().encode("latin-1", "replace")
        found = [hmac.compare_digest(secret, token) for secret in self.secrets]
        if not any(found):
            raise SignatureError("the token is wrong")
        return None


class Unverified:
    """Accepts each request: the verifier ``none``."""

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Accept a request."""
        return None


def _hmac(scheme: Hmac) -> Callable[[HookEntry, list[bytes]], Verifier]:
    """Return what makes the verifier of a sender that signs the body."""
    return lambda entry, secrets: replace(scheme, secrets=secrets, tolerance_s=entry.tolerance_s)


def _generic(entry: HookEntry, secrets: list[bytes]) -> Verifier:
    default = f"{_TIMESTAMP}.{_BODY}" if entry.timestamp_header else _BODY
    return Hmac(
        secrets,
        entry.header,
        entry.prefix,
        entry.encoding,
        entry.digest,
        entry.signed or default,
        entry.timestamp_header,
        entry.tolerance_s,
    )


VERIFIERS: dict[str, Callable[[HookEntry, list[bytes]], Verifier]] = {
    # https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries
    "github": _hmac(
        Hmac(
            (),
            header="x-hub-signature-256",
            prefix="sha256=",
            delivery_id=selector("header:x-github-delivery"),
        )
    ),
    # https://docs.slack.dev/authentication/verifying-requests-from-slack
    "slack": _hmac(
        Hmac(
            (),
            header="x-slack-signature",
            prefix="v0=",
            signed="v0:{timestamp}:{body}",
            timestamp_header="x-slack-request-timestamp",
            delivery_id=selector("json:event_id"),
        )
    ),
    # https://shopify.dev/docs/apps/build/webhooks/verify-deliveries
    "shopify": _hmac(
        Hmac(
            (),
            header="x-shopify-hmac-sha256",
            encoding="base64",
            delivery_id=selector("header:x-shopify-webhook-id"),
        )
    ),
    "stripe": lambda entry, secrets: Stripe(secrets, entry.tolerance_s),
    "twilio": lambda entry, secrets: Twilio(secrets),
    "standard": lambda entry, secrets: Standard(
        signatures.Verifier([each.decode() for each in secrets]), entry.tolerance_s
    ),
    "hmac": _generic,
    "token": lambda entry, secrets: Token(secrets, entry.header, entry.prefix),
    "none": lambda entry, secrets: Unverified(),
}
"""By the name in the settings, what makes a verifier."""


def make_verifier(entry: HookEntry) -> Verifier:
    """Return the verifier of a hook, with its secrets resolved.

    Raises:
        SettingsError: a secret is missing, empty or invalid.
    """
    try:
        secrets = [_secret(each) for each in entry.secrets]
        return VERIFIERS[entry.verifier](entry, secrets)
    except SettingsError as error:
        raise SettingsError(f"hook {entry.name}: {error}", hint=error.hint) from error


def _secret(reference: str) -> bytes:
    found = resolve(reference)
    text = found.reveal() if isinstance(found, Secret) else str(found)
    if not text:
        raise SettingsError(f"the secret {reference} is empty, so anyone could sign")
    return text.encode()


def _match(
    secrets: Sequence[bytes], signed: Sequence[bytes], given: Sequence[bytes], digest: str
) -> None:
    """Check that one of the secrets has made one of the signatures of one of the texts.

    Raises:
        SignatureError: none has.
    """
    # Each secret is tried, so that the time does not say which one has signed.
    expected = [hmac.digest(secret, text, digest) for secret in secrets for text in signed]
    found = [hmac.compare_digest(one, other) for one in expected for other in given]
    if not any(found):
        raise SignatureError("no signature matches")


def _decode_all(text: str, prefix: str, encoding: str) -> list[bytes]:
    """Return the signatures of a header. Those with another prefix are left out."""
    parts = [part for part in re.split("[ ,]+", text) if part.startswith(prefix)]
    return _decode([part[len(prefix) :] for part in parts], encoding)


def _decode(texts: list[str], encoding: str) -> list[bytes]:
    """Return signatures as bytes. Those that are malformed are left out.

    Raises:
        SignatureError: there are too many.
    """
    if len(texts) > MAX_SIGNATURES:
        raise SignatureError(f"more than {MAX_SIGNATURES} signatures")
    decode = decode_base64 if encoding == "base64" else _decode_hex
    return [found for found in map(decode, texts) if found]


def _decode_hex(text: str) -> bytes | None:
    try:
        return binascii.unhexlify(text.encode("ascii"))
    except (binascii.Error, UnicodeEncodeError):
        return None


def _with_port(url: str) -> str:
    parts = urlsplit(url)
    if not parts.netloc or re.search(r":\d+$", parts.netloc):
        return url
    port = 443 if parts.scheme == "https" else 80
    return url.replace(parts.netloc, f"{parts.netloc}:{port}", 1)


def _without_port(url: str) -> str:
    netloc = urlsplit(url).netloc
    return url.replace(netloc, re.sub(r":\d+$", "", netloc), 1) if netloc else url
