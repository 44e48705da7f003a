"""The definition of a webhook that goes out: what a user writes, and what workers read.

It contains no secret: ``${env:NAME}`` and ``${file:PATH}`` refer to them. This module is imported
when a broker starts, so it imports others where they are used. Must not know: Kafka, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tidemill.connect.base.definitions import StoredSection
from tidemill.connect.base.secrets import find_plain
from tidemill.connect.webhooks.errors import DefinitionError, ExpressionError
from tidemill.connect.webhooks.retries import STANDARD_S
from tidemill.connect.webhooks.topics import attempts_topic, dead_letters_topic

DAY_S = 86_400.0
_LONGEST_S = 10 * DAY_S
"""The topic of attempts keeps them for 14 days."""
_TOPIC = r"^[A-Za-z0-9._-]{0,249}$"
_FORBIDDEN_HEADERS = frozenset(
    ["webhook-id", "webhook-timestamp", "webhook-signature", "content-length", "host"]
) | {"transfer-encoding", "connection"}

Pause = Annotated[float, Field(ge=0.01, le=7 * DAY_S)]


class Webhook(StoredSection):
    """A topic that is delivered to an HTTP endpoint: a [webhook](guide-webhooks.md#webhooks-out).
    One worker, `webhooks`, delivers all of them.
    """

    key = "webhook"
    docs = "docs/guide-webhooks.md"
    invalid = DefinitionError
    is_repeated = True

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Identifies the webhook: its consumer group and its topics.",
    )
    url: str = Field(max_length=2048, description="Where requests go: https:// or http://.")
    topic: str = Field(min_length=1, pattern=_TOPIC, description="The topic to deliver.")
    secrets: list[str] = Field(
        [],
        max_length=5,
        description="References to the secrets that sign, newest first: `whsec_…` (v1) or "
        "`whsk_…` (v1a). Requests have a signature for each.",
    )
    signed: bool = Field(True, description="Whether requests are signed; false needs no secrets.")
    managed: bool = Field(
        True, description="Whether the worker of tidemill dev and tidemill serve delivers it."
    )
    start_at: Literal["beginning", "end"] = Field(
        "end", description="Where a new webhook starts: beginning, or end: with new records."
    )
    event_type: str = Field(
        "type", description="Path of the event type, for types: a field, or $headers.NAME."
    )
    types: list[str] = Field(
        [], max_length=200, description="Event types to deliver; * stands for any text. Empty: all."
    )
    filter: str = Field("", description="Expression that a record must meet to be delivered.")
    template: Any = Field(
        None,
        description="JSON value to send, with ${path} for fields; default: the record's value.",
    )
    content_type: str = Field("application/json", description="Content-Type of requests.")
    headers: dict[str, str] = Field(
        {}, description="More headers of requests; a value can be a reference."
    )
    id_header: str = Field(
        "",
        description="Header of records that has the message id; default: topic id, partition and "
        "offset.",
    )
    order: Literal["key", "none"] = Field(
        "key", description="Whether records with the same key are delivered in their order."
    )
    batch: int = Field(
        1, ge=1, le=1000, description="Most records of one request. Above 1, a request is an array."
    )
    concurrency: int = Field(16, ge=1, le=1000, description="Most requests at a time.")
    rate: float | None = Field(
        None, ge=0.001, le=1e6, description="Most requests per second; default: no limit."
    )
    timeout_s: float = Field(20.0, ge=0.1, le=300, description="Time for one attempt, in seconds.")
    retries_s: list[Pause] = Field(
        list(STANDARD_S),
        max_length=50,
        description="Pauses between attempts, in seconds. After the last one, a record becomes a "
        "dead letter.",
    )
    max_retry_after_s: float = Field(
        3600.0, ge=0, le=7 * DAY_S, description="The longest Retry-After that is granted."
    )
    disable_after_s: float = Field(
        5 * DAY_S, ge=1, description="An endpoint that fails for so long is disabled."
    )
    max_waiting: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Most records that wait in memory. Above that, no more are read.",
    )
    overflow: Literal["wait", "dead-letter"] = Field(
        "wait",
        description="What happens at max_waiting: reading waits, or the failing key with the most "
        "records behind it goes to the dead letters.",
    )
    dead_letters: str = Field(
        "", pattern=_TOPIC, description="Topic of dead letters; default: one of its own."
    )
    allow_private: bool = Field(
        False, description="Whether loopback and private addresses can be reached."
    )
    proxy: str = Field(
        "", description="URL of an HTTP proxy. It decides which addresses it reaches."
    )
    ca_file: Path | None = Field(
        None, description="PEM file with the authorities that sign the endpoint's certificate."
    )

    @classmethod
    def plain_secrets(cls, values: dict[str, Any]) -> list[str]:
        """Return the keys that contain a secret as plain text. A template has none."""
        plain = find_plain({key: each for key, each in values.items() if key != "template"})
        secrets = values.get("secrets")
        is_plain = isinstance(secrets, list) and any("${" not in str(each) for each in secrets)
        return ["secrets", *plain] if is_plain else plain

    @field_validator("url", "proxy")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not url or url.startswith("${"):
            return url
        parts = urlsplit(url)  # a port that is not a number raises a ValueError
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("expected https://HOST/PATH or http://HOST/PATH")
        if any(each.isspace() or not each.isprintable() for each in url):
            raise ValueError("it contains spaces or control characters")
        return url

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
                raise ValueError(f"invalid header name {name!r}")
            if name.lower() in _FORBIDDEN_HEADERS:
                raise ValueError(f"the header {name} is set by the sender")
            if any(each in "\r\n\0" for each in value):
                raise ValueError(f"the value of {name} contains a line end")
        return headers

    @field_validator("retries_s")
    @classmethod
    def _check_retries(cls, retries_s: list[float]) -> list[float]:
        if sum(retries_s) > _LONGEST_S:
            raise ValueError(f"the pauses are longer than {_LONGEST_S / DAY_S:g} days in total")
        return retries_s

    @model_validator(mode="after")
    def _check_expressions(self) -> Self:
        from tidemill.connect.webhooks.expression import parse_filter, parse_path
        from tidemill.connect.webhooks.template import parse_template

        try:
            parse_path(self.event_type)
            if self.filter:
                parse_filter(self.filter)
            if self.template is not None:
                parse_template(self.template)
        except ExpressionError as error:
            raise DefinitionError(str(error), hint=error.hint) from error
        return self

    @model_validator(mode="after")
    def _check_secrets(self) -> Self:
        if self.signed != bool(self.secrets):
            raise DefinitionError(
                "a webhook needs a secret, so that the receiver can tell who sends"
                if self.signed
                else "signed = false, but there are secrets",
                hint='secrets = ["${env:NAME}"] or ["${file:/path}"]; signed = false sends without '
                "a signature.",
            )
        return self

    @model_validator(mode="after")
    def _check_topics(self) -> Self:
        attempts, letters = attempts_topic(self.name), self.dead_letters_topic
        if self.topic in (attempts, letters) or letters == attempts:
            raise DefinitionError(
                f"webhook {self.name} would deliver what it writes itself, or mix it",
                hint="topic, dead_letters and the topic of attempts must be three topics.",
            )
        return self

    @property
    def dead_letters_topic(self) -> str:
        """The topic of its dead letters."""
        return self.dead_letters or dead_letters_topic(self.name)

    def check_no_circle(self, others: Iterable[Webhook]) -> None:
        """Check that nothing that it writes comes back to it through other webhooks.

        Raises:
            DefinitionError: its attempts or dead letters would make new ones without end.
        """
        others = [each for each in others if each.name != self.name]
        feeding, more = set[str](), {self.topic}
        while more:
            feeding |= more
            more = {each.topic for each in others if not feeding.isdisjoint(each._written)}
            more -= feeding
        if not feeding.isdisjoint(self._written):
            raise DefinitionError(
                f"webhook {self.name} would deliver what other webhooks write because of it",
                hint=f"Topic {self.topic} has attempts or dead letters of a webhook that, itself "
                "or through others, delivers those of this one.",
            )

    @property
    def _written(self) -> tuple[str, str]:
        """The topics that it writes."""
        return attempts_topic(self.name), self.dead_letters_topic

    @property
    def needs_json(self) -> bool:
        """Whether a record has to be JSON. Others are dead-lettered."""
        fields = self.types and not self.event_type.startswith("$")
        return bool(fields or self.filter or self.template is not None or self.batch > 1)

    def with_secret(self, reference: str, keep: int = 1) -> Webhook:
        """Return the definition with a new secret, and so many of the old ones behind it."""
        changed = {"secrets": [reference, *self.secrets[:keep]], "signed": True}
        return self.parse({**self.model_dump(exclude_defaults=True), **changed})

    def relative_to(self, folder: Path) -> Self:
        """Return the definition with a ``ca_file`` that is relative to a folder."""
        if self.ca_file is None:
            return self
        found = (folder.absolute() / self.ca_file.expanduser()).resolve()
        return self.model_copy(update={"ca_file": found})


parse = Webhook.parse
read_file = Webhook.read_file
