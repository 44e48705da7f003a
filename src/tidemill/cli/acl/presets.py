"""The least rules of what tidemill itself runs: pipelines, sources, gateways, alerts and others.

This module must not print.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated

import typer

from tidemill.cli.output import UsageError
from tidemill.state.security.types import (
    WILDCARD,
    Operation,
    Pattern,
    ResourceKind,
    Rule,
)

METRICS = "tidemill.metrics"
"""The topic that workers publish their figures to."""
TOPIC, GROUP, TRANSACTIONAL_ID = (
    ResourceKind.TOPIC,
    ResourceKind.GROUP,
    ResourceKind.TRANSACTIONAL_ID,
)


class Preset(enum.StrEnum):
    """The uses of a user that have rules of their own."""

    PIPELINE = "pipeline"
    SOURCE = "source"
    GATEWAY = "gateway"
    BRIDGE = "bridge"
    VIEW = "view"
    WEBHOOK = "webhook"
    ALERTS = "alerts"


Purpose = Annotated[
    Preset | None,
    typer.Option("--for", help="Also create the least rules of this.", show_default=False),
]
NameOfPurpose = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="Name of the pipeline, source or webhook of --for."
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option("--read", metavar="TOPIC", help="Topic to read; PREFIX* for several."),
]
Write = Annotated[
    list[str] | None, typer.Option("--write", metavar="TOPIC", help="Topic to create and write.")
]
GroupNames = Annotated[
    list[str] | None, typer.Option("--group", metavar="GROUP", help="Consumer group to join.")
]

_USES = (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE_CONFIGS)
_WRITES = (Operation.WRITE, Operation.CREATE, Operation.DESCRIBE_CONFIGS)

Grant = tuple[ResourceKind, str, tuple[Operation, ...]]
"""A kind, a name (with ``*`` at the end: a prefix), and operations."""


def _pipeline(name: str) -> list[Grant]:
    return [
        (TOPIC, "tidemill.pipelines", _USES),
        # The sinks of a pipeline keep their markers as offsets of groups of their own.
        (GROUP, f"{name}*", (Operation.READ,)),
        (TRANSACTIONAL_ID, f"{name}*", (Operation.WRITE,)),
    ]


def _source(name: str) -> list[Grant]:
    return [
        (TOPIC, "tidemill.sources", _USES),
        (TOPIC, f"tidemill.source.{name}", _USES),
        (TRANSACTIONAL_ID, f"tidemill-source-{name}", (Operation.WRITE,)),
        (GROUP, "tidemill-source*", (Operation.DESCRIBE,)),
    ]


def _webhook(name: str) -> list[Grant]:
    return [
        (TOPIC, "tidemill.webhooks", _USES),
        (TOPIC, f"tidemill.webhook.{name}.*", _USES),
        (GROUP, f"tidemill-webhook-{name}", (Operation.READ,)),
        (GROUP, "tidemill-webhooks", (Operation.DESCRIBE,)),
    ]


def _bridge(name: str) -> list[Grant]:
    return [
        (TOPIC, "tidemill.bridges", _USES),
        (GROUP, "tidemill-bridge*", (Operation.DESCRIBE,)),
    ]


def _view(name: str) -> list[Grant]:
    return [
        (TOPIC, "tidemill.views", _USES),
        (GROUP, "tidemill-views", (Operation.DESCRIBE,)),
        (GROUP, "tidemill-sql*", (Operation.DESCRIBE,)),
    ]


def _gateway(name: str) -> list[Grant]:
    return [
        (TRANSACTIONAL_ID, "tidemill-hook-*", (Operation.WRITE,)),
        (GROUP, "tidemill-gateway*", (Operation.DESCRIBE,)),
        (TOPIC, "tidemill.amqp", (Operation.READ, Operation.CREATE)),
    ]


def _alerts(name: str) -> list[Grant]:
    return [
        (TOPIC, "tidemill.alerts", _USES),
        (TOPIC, METRICS, (Operation.READ,)),
        (TRANSACTIONAL_ID, "tidemill-alerts", (Operation.WRITE,)),
        (GROUP, "tidemill-alerts", (Operation.DESCRIBE,)),
    ]


_GRANTS: dict[Preset, Callable[[str], list[Grant]]] = {
    Preset.PIPELINE: _pipeline,
    Preset.SOURCE: _source,
    Preset.GATEWAY: _gateway,
    Preset.BRIDGE: _bridge,
    Preset.VIEW: _view,
    Preset.WEBHOOK: _webhook,
    Preset.ALERTS: _alerts,
}
_NAMELESS = {Preset.GATEWAY, Preset.BRIDGE, Preset.VIEW, Preset.ALERTS}


def rules_for(
    user: str,
    preset: Preset | None,
    name: str | None,
    read: list[str],
    write: list[str],
    groups: list[str],
) -> list[Rule]:
    """Return the rules of a user.

    Args:
        preset: what the user is for; None: only for the topics and groups that are given.
        name: of the pipeline, source or webhook.
        read, write: topics, with ``*`` at the end for a prefix.
        groups: consumer groups, likewise.

    Raises:
        UsageError: the name is missing, or there is none to give.
    """
    grants: list[Grant] = []
    if preset is not None:
        if name is None and preset not in _NAMELESS:
            raise _nameless(preset)
        grants += [*_GRANTS[preset](name or ""), (TOPIC, METRICS, _WRITES)]
    elif name is not None:
        raise UsageError(f"{name!r} needs --for", hint=f"--for is one of {', '.join(Preset)}.")
    grants += [(TOPIC, topic, (Operation.READ,)) for topic in read]
    grants += [(TOPIC, topic, _WRITES) for topic in write]
    grants += [(GROUP, group, (Operation.READ,)) for group in groups]
    return [
        _rule(user, kind, resource, operation)
        for kind, resource, operations in grants
        for operation in operations
    ]


def _nameless(preset: Preset) -> UsageError:
    """Return the error of a preset without a name."""
    return UsageError(
        f"--for {preset} needs a name",
        hint=f"tidemill user create NAME --for {preset} --name {preset.upper()}",
    )


def _rule(user: str, kind: ResourceKind, name: str, operation: Operation) -> Rule:
    is_prefix = name.endswith(WILDCARD) and name != WILDCARD
    return Rule(
        kind,
        Pattern.PREFIXED if is_prefix else Pattern.LITERAL,
        name[:-1] if is_prefix else name,
        f"User:{user}",
        WILDCARD,
        operation,
        True,
    )
