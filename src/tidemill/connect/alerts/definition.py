"""The settings of alerts: ``[alerts]``, rules and receivers.

They are in the settings file only. A broker reads them at its start, so this module imports others
where they are used. Must not know: Kafka, HTTP, how a rule is evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tidemill.connect.base.secrets import find_plain
from tidemill.errors import TidemillError
from tidemill.settings.section import Section

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
LABEL = r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"
DAY_S = 86_400.0
ALL_LABELS = "..."
Label = Annotated[str, Field(pattern=LABEL)]


class AlertsSection(Section):
    """The worker of [alerts](guide-alerts.md). It starts if there is an `[[alert]]`."""

    key = "alerts"

    run: bool = Field(True, description="Whether the broker starts the worker process `alerts`.")
    interval_ms: int = Field(
        15_000, ge=50, le=3_600_000, description="Milliseconds between evaluations of the rules."
    )
    scrape: str = Field(
        "",
        description="URLs of metrics in Prometheus's format, with commas; default: those of the "
        "broker beside which the worker runs. The metrics of workers are known without.",
    )
    external_url: str = Field(
        "", max_length=2048, description="URL of the console, for the links in notices."
    )

    def urls(self) -> list[str]:
        """Return the URLs of ``scrape``."""
        return [each for each in (part.strip() for part in self.scrape.split(",")) if each]


class AlertEntry(Section):
    """A rule of [alerts](guide-alerts.md): on a metric, or on the records of a topic.
    One worker, `alerts`, evaluates all of them.
    """

    key = "alert"
    is_repeated = True
    refers_to = {"receivers": "alert_receiver"}

    name: str = Field(
        pattern=_NAME, description="Identifies the rule; the label `alertname` of its alerts."
    )
    metric: str = Field(
        "",
        pattern=r"^([a-zA-Z_:][a-zA-Z0-9_:]{0,199})?$",
        description="The metric: a series that the broker, a worker or a URL of alerts.scrape has.",
    )
    topic: str = Field(
        "", pattern=r"^[A-Za-z0-9._-]{0,249}$", description="The topic, instead of a metric."
    )
    measure: Literal["", "value", "rate", "increase", "count", "last", "absent", "events"] = Field(
        "",
        description="Of a metric: value (default), rate (per second), increase (in window_s) or "
        "absent. Of a topic, the records of the last window_s: count (default), rate, last (the "
        "newest value of field), absent, or events (records that are alerts themselves).",
    )
    filter: str = Field(
        "", description="Expression that the labels of a series or the JSON of a record must meet."
    )
    by: list[str] | None = Field(
        None,
        max_length=20,
        description="Labels, or fields of records, that tell alerts apart; the rest is "
        "added up. Default: all labels of a series; none of a record.",
    )
    field: str = Field("", description="The field of records for measure = last.")
    window_s: float = Field(
        300.0, ge=1, le=7 * DAY_S, description="Seconds that rate, increase and records cover."
    )
    above: float | None = Field(None, description="It is active if the value is above this.")
    below: float | None = Field(None, description="It is active if the value is below this.")
    for_s: float = Field(
        0.0, ge=0, le=7 * DAY_S, description="Seconds that it must be active before it fires."
    )
    labels: dict[Label, str] = Field(
        {}, max_length=30, description="More labels of its alerts, e.g. severity."
    )
    summary: str = Field(
        "", max_length=2000, description="A sentence for people, with ${value} and ${LABEL}."
    )
    annotations: dict[Label, str] = Field(
        {}, max_length=30, description="More texts for people, e.g. runbook_url."
    )
    receivers: list[str] = Field(
        [], max_length=50, description="Names of the receivers of notices. Empty: all."
    )

    @property
    def measured(self) -> str:
        """The measure, with its default."""
        return self.measure or ("value" if self.metric else "count")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.metric) == bool(self.topic):
            raise ValueError("a rule needs one of metric and topic")
        of_metric = ("value", "rate", "increase", "absent")
        allowed = of_metric if self.metric else ("count", "rate", "last", "absent", "events")
        if self.measured not in allowed:
            what = "metric" if self.metric else "topic"
            raise ValueError(f"measure of a {what} is one of: {', '.join(allowed)}")
        has_limit = self.above is not None or self.below is not None
        if has_limit == (self.measured in ("absent", "events")):
            raise ValueError(
                f"measure = {self.measured} has no above or below"
                if has_limit
                else f"measure = {self.measured} needs above or below"
            )
        if (self.measured == "last") != bool(self.field):
            raise ValueError("measure = last needs field, and no other measure has it")
        if self.by and self.measured in ("absent", "events"):
            raise ValueError(f"measure = {self.measured} can't have by")
        if self.measured == "events" and self.for_s:
            raise ValueError("measure = events has no for_s: the records say when it fires")
        if {"alertname", "value"} & {*self.labels, *(self.by or ())}:
            raise ValueError("alertname and value are labels that alerts have already")
        self._check_expressions()
        return self

    def _check_expressions(self) -> None:
        from tidemill.connect.webhooks.expression import parse_filter, parse_path
        from tidemill.connect.webhooks.template import parse_template

        try:
            if self.filter:
                parse_filter(self.filter)
            for path in (*(self.by or ()), *([self.field] if self.field else ())):
                parse_path(path)
            for text in (self.summary, *self.annotations.values()):
                parse_template(text)
        except TidemillError as error:
            raise ValueError(str(error)) from None


class ReceiverEntry(Section):
    """A receiver of the notices of [alerts](guide-alerts.md#receivers)."""

    key = "alert_receiver"
    is_repeated = True

    name: str = Field(pattern=_NAME, description="Identifies the receiver.")
    kind: Literal["webhook", "alertmanager", "email", "command"] = Field(
        "webhook",
        description="webhook (the body of Alertmanager's webhooks), alertmanager (its API v2), "
        "email (SMTP) or command.",
    )
    url: str = Field(
        "",
        max_length=2048,
        description="Address of the webhook, or of Alertmanager: http://HOST:9093. A reference "
        "is allowed: ${env:NAME}.",
    )
    secrets: list[str] = Field(
        [],
        max_length=5,
        description="References to the secrets that sign requests, as for webhooks.",
    )
    headers: dict[str, str] = Field(
        {}, description="More headers of requests; a value can be a reference."
    )
    allow_private: bool = Field(
        False, description="Whether loopback and private addresses can be reached."
    )
    ca_file: Path | None = Field(
        None, description="PEM file with the authorities that sign the receiver's certificate."
    )
    proxy: str = Field("", description="URL of an HTTP proxy.")
    smtp: str = Field("", description="SMTP server of email: HOST or HOST:PORT.")
    smtp_tls: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="How the connection to the SMTP server is secured."
    )
    username: str = Field("", description="User of the SMTP server, if it needs a login.")
    password: str = Field("", description="Reference to the password: ${env:NAME}, ${file:PATH}.")
    sender: str = Field("", description="Address in From of emails.")
    to: list[str] = Field([], max_length=100, description="Addresses that get emails.")
    command: list[str] = Field(
        [], max_length=100, description="Program and arguments; it gets the body as its input."
    )
    timeout_s: float = Field(20.0, ge=0.1, le=300, description="Time for one attempt, in seconds.")
    group_by: list[str] = Field(
        ["alertname"],
        max_length=20,
        description="Labels whose values put alerts into one notice. Empty: all are in one. "
        '"...": each has its own.',
    )
    group_wait_s: float = Field(
        10.0, ge=0, le=DAY_S, description="Seconds that the first notice of a group waits for more."
    )
    group_interval_s: float = Field(
        60.0, ge=0, le=DAY_S, description="Seconds between two notices of a group that changes."
    )
    repeat_interval_s: float = Field(
        4 * 3600.0, ge=1, le=30 * DAY_S, description="Seconds until what still fires is sent again."
    )
    send_resolved: bool = Field(True, description="Whether the end of alerts is sent, too.")

    @field_validator("url", "proxy")
    @classmethod
    def _check_url(cls, url: str) -> str:
        from tidemill.connect.webhooks.definition import Webhook

        return Webhook._check_url(url)

    @model_validator(mode="before")
    @classmethod
    def _refuse_plain_secrets(cls, values: dict[str, Any]) -> dict[str, Any]:
        plain = find_plain(values)
        secrets = values.get("secrets")
        if isinstance(secrets, list) and any("${" not in str(each) for each in secrets):
            plain.append("secrets")
        if plain:
            raise ValueError(
                f"{plain[0]} contains a secret as plain text: refer to it by ${{env:NAME}} or "
                "${file:PATH}"
            )
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        needed = {
            "webhook": ("url",),
            "alertmanager": ("url",),
            "email": ("smtp", "sender", "to"),
            "command": ("command",),
        }
        own = needed[self.kind]
        if missing := [name for name in own if not getattr(self, name)]:
            raise ValueError(f"kind = {self.kind} needs {', '.join(missing)}")
        for kind, names in needed.items():
            extra = [name for name in names if name not in own and getattr(self, name)]
            if extra:
                raise ValueError(f"{extra[0]} is for kind = {kind}")
        if any(each in "\r\n" for text in (self.sender, *self.to) for each in text):
            raise ValueError("an address contains a line end")
        return self

    @property
    def keeps_state(self) -> bool:
        """Whether the receiver groups, silences and repeats itself: Alertmanager does."""
        return self.kind == "alertmanager"

    @property
    def repeat_s(self) -> float:
        """Seconds until what still fires is sent again; Alertmanager needs that each minute."""
        is_given = "repeat_interval_s" in self.model_fields_set
        return self.repeat_interval_s if is_given or not self.keeps_state else 60.0
