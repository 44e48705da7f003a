"""Verify requests of senders: one class per way to sign, and what each sender has as settings.

The bytes of the body are verified as they arrived. A header that is missing, malformed, too long or
wrong is a ``SignatureError``, and no other exception. Must not know: what is stored, the clock.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
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
from tidemill.gateway.hooks.mapping import Delivery, selector
from tidemill.gateway.hooks.settings import HookEntry

MAX_FIELDS = 1000
"""Fields of a form that are verified. Twilio signs them one by one."""
_BODY, _TIMESTAMP = "{body}", "{timestamp}"
_PLAIN = {"prefix": "", "encoding": "hex", "digest": "sha256"}
SENDERS: dict[str, dict[str, str]] = {
    # https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries
    "github": {
        **_PLAIN,
        "header": "x-hub-signature-256",
        "prefix": "sha256=",
        "delivery_id": "header:x-github-delivery",
    },
    # https://docs.slack.dev/authentication/verifying-requests-from-slack
    "slack": {
        **_PLAIN,
        "header": "x-slack-signature",
        "prefix": "v0=",
        "signed": "v0:{timestamp}:{body}",
        "timestamp_header": "x-slack-request-timestamp",
        "delivery_id": "json:event_id",
    },
    # https://shopify.dev/docs/apps/build/webhooks/verify-deliveries
    "shopify": {
        **_PLAIN,
        "header": "x-shopify-hmac-sha256",
        "encoding": "base64",
        "delivery_id": "header:x-shopify-webhook-id",
    },
    "stripe": {"delivery_id": "json:id"},
    "twilio": {"delivery_id": "header:i-twilio-idempotency-token"},
}
"""What senders have as settings of their hook. An id that the user sets is used instead."""


class Verifier:
    """Verifies the requests of one sender.

    Args:
        entry: the settings of the hook, with those that its sender has.
        secrets: the keys; one of them has signed.
    """

    def __init__(self, entry: HookEntry, secrets: Sequence[bytes]) -> None:
        self.entry = entry
        self.secrets = secrets
        self._id = selector(entry.delivery_id) if entry.delivery_id else None

    def verify(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request.

        Args:
            now_s: the time in seconds since 1970.

        Returns:
            What identifies the delivery, if there is something.

        Raises:
            SignatureError: the request must not be accepted.
        """
        signed = self.check(delivery, now_s)
        return signed if self._id is None else self._id(delivery)

    def check(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request, and return its id if that is signed. This one accepts all: ``none``."""
        return None


class Hmac(Verifier):
    """HMAC of the body, in a header with the signatures, separated by commas or spaces."""

    def check(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``)."""
        entry = self.entry
        given = _decode_all(header(delivery.headers, entry.header), entry.prefix, entry.encoding)
        timestamp = ""
        if entry.timestamp_header:
            timestamp = header(delivery.headers, entry.timestamp_header)
            check_time(timestamp, now_s, entry.tolerance_s)
        default = f"{_TIMESTAMP}.{_BODY}" if entry.timestamp_header else _BODY
        parts = (entry.signed or default).replace(_TIMESTAMP, timestamp).encode()
        before, _, after = parts.partition(_BODY.encode())
        _match(self.secrets, [before + delivery.body + after], given, entry.digest)
        return None


class Stripe(Verifier):
    """Stripe: the time and the signatures are in one header, ``t=…,v1=…,v1=…``.

    Source: https://docs.stripe.com/webhooks/signature
    """

    def check(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``)."""
        parts = header(delivery.headers, "stripe-signature").split(",")
        pairs = [part.strip().partition("=") for part in parts]
        times = [value for name, _, value in pairs if name == "t"]
        if len(times) != 1:
            raise SignatureError("the header stripe-signature needs one time t=")
        check_time(times[0], now_s, self.entry.tolerance_s)
        given = _decode([value for name, _, value in pairs if name == "v1"], "hex")
        _match(self.secrets, [b"%s.%s" % (times[0].encode(), delivery.body)], given, "sha256")
        return None


class Twilio(Verifier):
    """Twilio: the URL and the fields of the form are signed; with JSON, a digest in the URL.

    Source: https://www.twilio.com/docs/usage/webhooks/webhooks-security
    """

    def check(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``). Twilio signs no time."""
        given = _decode_all(header(delivery.headers, "x-twilio-signature"), "", "base64")
        digest = self._digest(delivery.headers.get("x-twilio-webhooks-signature-settings", ""))
        fields = self._fields(delivery)
        # It is not certain whether Twilio signs the URL with its port.
        urls = {delivery.url, _with_port(delivery.url), _without_port(delivery.url)}
        signed = [(url + fields).encode("utf-8", "replace") for url in sorted(urls)]
        _match(self.secrets, signed, given, digest)
        return None

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


class Standard(Verifier):
    """Standard Webhooks, with its headers or with those of Svix. The id is signed."""

    def __init__(self, entry: HookEntry, secrets: Sequence[bytes]) -> None:
        super().__init__(entry, secrets)
        self._verifier = signatures.Verifier([each.decode() for each in secrets])

    def check(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``)."""
        prefix = "webhook-" if signatures.SIGNATURE in delivery.headers else "svix-"
        return self._verifier.verify(
            delivery.headers, delivery.body, now_s, self.entry.tolerance_s, prefix
        )


class Token(Verifier):
    """A secret in a header, e.g. GitLab's ``X-Gitlab-Token``. It signs nothing."""

    def check(self, delivery: Delivery, now_s: float) -> str | None:
        """Check a request (see ``Verifier``)."""
        name, prefix = self.entry.header, self.entry.prefix
        given = header(delivery.headers, name)
        if not given.lower().startswith(prefix.lower()):
            raise SignatureError(f"the header {name} is malformed")
        token = given[len(prefix) :].strip().encode("latin-1", "replace")
        found = [hmac.compare_digest(secret, token) for secret in self.secrets]
        if not any(found):
            raise SignatureError("the token is wrong")
        return None


VERIFIERS: dict[str, type[Verifier]] = {
    **dict.fromkeys(("github", "slack", "shopify", "hmac"), Hmac),
    "stripe": Stripe,
    "twilio": Twilio,
    "standard": Standard,
    "token": Token,
    "none": Verifier,
}
"""By the name in the settings, what verifies."""


def make_verifier(entry: HookEntry) -> Verifier:
    """Return the verifier of a hook, with its secrets resolved.

    Raises:
        SettingsError: a secret is missing, empty or invalid.
    """
    try:
        secrets = [_secret(each) for each in entry.secrets]
        known = SENDERS.get(entry.verifier, {})
        own = {"delivery_id": entry.delivery_id} if entry.delivery_id else {}
        return VERIFIERS[entry.verifier](entry.model_copy(update={**known, **own}), secrets)
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
