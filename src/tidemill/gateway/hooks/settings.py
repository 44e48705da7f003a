"""The settings of webhooks that come in: ``[hooks]`` is their listener, ``[[hook]]`` is a hook.

A broker reads them at its start, so this module imports nothing of the gateway. Must not know: how
a hook is verified or stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tidemill.connect.base.secrets import is_reference
from tidemill.settings.section import (
    HOST,
    INT,
    CertificateFile,
    KeyFile,
    ListenerPort,
    Section,
)

_FIELD = r"[^.\s\x00-\x1f]{1,100}"
SELECTOR = rf"method|(header|query|path):[!-~]{{1,100}}|json:{_FIELD}(\.{_FIELD}){{0,15}}"
_SEGMENT = re.compile(r"\{[a-z_][a-z0-9_]{0,49}\}")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_URL = re.compile(r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?(/[^\s?#]*)?", re.ASCII)
Selected = Annotated[str, Field(pattern=f"^({SELECTOR})?$")]


class HooksSection(Section):
    """The listener of webhooks that come in. It starts if there is a `[[hook]]`."""

    key = "hooks"

    host: Annotated[str, HOST] = Field("127.0.0.1", description="Address to listen on.")
    port: ListenerPort = 8081
    tls_cert: CertificateFile = None
    tls_key: KeyFile = None
    body_bytes: int = Field(
        1 << 20, ge=1, le=16 << 20, description="Largest body of a request in bytes."
    )
    connections: int = Field(1000, ge=1, le=INT, description="Largest number of open connections.")
    requests_per_second: int = Field(
        0,
        ge=0,
        le=INT,
        description="Most requests of one client address in a second, on average over ten seconds. "
        "Above it, requests are answered with status 429. 0: no limit.",
    )
    public_url: str = Field(
        "",
        description="What senders put before /hooks/NAME, e.g. https://hooks.example.com. Twilio "
        "signs the URL, so a hook of Twilio needs it.",
    )

    @field_validator("public_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url and not _URL.fullmatch(url):
            raise ValueError("expected a URL without a query, like https://hooks.example.com")
        return url


class HookEntry(Section):
    """A hook: requests to /hooks/NAME become records of a topic."""

    key = "hook"
    is_repeated = True

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Last part of the URL /hooks/NAME, and of the transactional id "
        "tidemill-hook-NAME.",
    )
    topic: str = Field(
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        description="The topic that gets the records. It is created if it does not exist.",
    )
    partitions: int = Field(
        1, ge=1, le=10_000, description="Partitions of the topic, if it is created."
    )
    verifier: Literal[
        "standard", "github", "stripe", "slack", "shopify", "twilio", "hmac", "token", "none"
    ] = Field(
        description="How requests are verified: standard (Standard Webhooks), github, stripe, "
        "slack, shopify, twilio, hmac (HMAC of the body), token (a secret in a header) or none."
    )
    secrets: list[str] = Field(
        [],
        max_length=8,
        description="References to the secrets that are valid, e.g. ${env:GITHUB_SECRET}. A second "
        "one makes it possible to replace the first.",
    )
    tolerance_s: int = Field(
        300,
        ge=1,
        le=86_400,
        description="How far a signed time can be from this machine's clock, in seconds.",
    )
    methods: list[Literal["POST", "PUT", "PATCH", "DELETE"]] = Field(
        ["POST"], min_length=1, description="Methods that are accepted."
    )
    path: str = Field(
        "",
        description="Parameters behind the name, e.g. /{shop}/{kind} for /hooks/NAME/eu/orders.",
    )
    format: Literal["raw", "cloudevents"] = Field(
        "raw",
        description="raw stores the body as it is; cloudevents accepts CloudEvents in binary, "
        "structured and batched mode, each as a record.",
    )
    key_from: Selected = Field(
        "",
        alias="key",
        description="The record's key: method, header:NAME, query:NAME, path:NAME or "
        "json:FIELD.FIELD.",
    )
    headers: dict[str, Selected] = Field(
        {}, max_length=50, description="More headers of the record, selected like the key."
    )
    delivery_id: Selected = Field(
        "",
        description="What identifies a delivery; default: what the sender has for it.",
    )
    dedupe: bool = Field(
        True, description="Whether a delivery that was stored is not stored again."
    )
    dedupe_ids: int = Field(
        50_000, ge=1, le=1_000_000, description="Most ids of deliveries that are remembered."
    )
    dedupe_hours: int = Field(
        72, ge=1, le=24 * 30, description="How long the id of a delivery is remembered."
    )
    timeout_s: float = Field(
        10.0,
        ge=0.1,
        le=300,
        description="Seconds after which a request that is not stored is answered with 503.",
    )
    header: str = Field("", description="hmac, token: the header with the signature or the token.")
    prefix: str = Field(
        "", max_length=100, description="hmac, token: what is before it, e.g. sha256= or Bearer."
    )
    encoding: Literal["hex", "base64"] = Field("hex", description="hmac: how it is written.")
    digest: Literal["sha1", "sha256", "sha384", "sha512"] = Field(
        "sha256", description="hmac: the hash function."
    )
    signed: str = Field(
        "",
        max_length=200,
        description="hmac: what is signed, with {body} and {timestamp}; default: {body}, or "
        "{timestamp}.{body}.",
    )
    timestamp_header: str = Field(
        "", description="hmac: the header with the signed time in seconds since 1970."
    )
    allowed_origins: list[str] = Field(
        [],
        max_length=100,
        description="cloudevents: the senders that can register, by WebHook-Request-Origin; * for "
        "all.",
    )
    allowed_rate: int | None = Field(
        None, ge=1, le=10**9, description="cloudevents: requests per minute that senders may send."
    )

    @field_validator("secrets")
    @classmethod
    def _require_references(cls, secrets: list[str]) -> list[str]:
        if not all(is_reference(each) for each in secrets):
            raise ValueError("a secret as plain text: refer to it with ${env:NAME} or ${file:PATH}")
        return secrets

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str) -> str:
        segments = path.split("/")[1:]
        if path and not (path.startswith("/") and all(map(_SEGMENT.fullmatch, segments))):
            raise ValueError("expected parameters in braces, e.g. /{shop}/{kind}")
        if len(set(segments)) < len(segments):
            raise ValueError("a parameter occurs twice")
        return path

    @field_validator("header", "timestamp_header")
    @classmethod
    def _check_header(cls, name: str) -> str:
        if name and not _TOKEN.fullmatch(name):
            raise ValueError("invalid name of a header")
        return name.lower()

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        is_generic = self.verifier in ("hmac", "token")
        if (self.verifier == "none") != (not self.secrets):
            needed = "has no secrets" if self.secrets else "needs secrets"
            raise ValueError(f"the verifier {self.verifier} {needed}")
        if is_generic != bool(self.header):
            needed = "needs" if is_generic else "has its own, and no"
            raise ValueError(f"the verifier {self.verifier} {needed} header")
        if self.verifier != "hmac" and (self.signed or self.timestamp_header):
            raise ValueError("signed and timestamp_header belong to the verifier hmac")
        if self.signed and self.signed.count("{body}") != 1:
            raise ValueError("signed must contain {body} once")
        if self.signed and ("{timestamp}" in self.signed) != bool(self.timestamp_header):
            raise ValueError("{timestamp} in signed and timestamp_header need each other")
        if self.format == "cloudevents" and self.delivery_id:
            raise ValueError("an event of CloudEvents is identified by its source and id")
        parameters = {each.strip("{}") for each in self.path.split("/")[1:]}
        for selector in (self.key_from, self.delivery_id, *self.headers.values()):
            kind, _, name = selector.partition(":")
            if kind == "path" and name not in parameters:
                raise ValueError(f"{selector} is not a parameter of path")
        reserved = {"webhook-id", "content-type"} & {name.lower() for name in self.headers}
        if reserved:
            raise ValueError(f"the header {min(reserved)} is written by the gateway itself")
        return self


@dataclass(frozen=True, slots=True)
class DeclaredHooks:
    """The hooks that a settings file declares, and their listener."""

    section: HooksSection
    entries: list[HookEntry]
