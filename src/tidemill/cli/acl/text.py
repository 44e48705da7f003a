"""Rules of access as users write them: ``alice``, ``read``, ``topic:orders*``.

This module must not print, and imports no client.
"""

from __future__ import annotations

import ipaddress

from tidemill.cli.output import UsageError
from tidemill.state.security.types import (
    CLUSTER_NAME,
    WILDCARD,
    Operation,
    Pattern,
    ResourceKind,
    Rule,
)

KINDS = {
    "topic": ResourceKind.TOPIC,
    "group": ResourceKind.GROUP,
    "transactional-id": ResourceKind.TRANSACTIONAL_ID,
    "cluster": ResourceKind.CLUSTER,
    "delegation-token": ResourceKind.DELEGATION_TOKEN,
    "user": ResourceKind.USER,
}
OPERATIONS = {each.name.lower().replace("_", "-"): each for each in Operation}
_USER = "User:"
_KIND_NAMES = {kind: name for name, kind in KINDS.items()}


def parse_principal(text: str) -> str:
    """Return ``User:alice`` for ``alice`` and for itself.

    ``User`` is the only type that the broker gives. A name can have a colon.
    """
    name = text.removeprefix(_USER)
    if not name:
        raise UsageError(
            f"invalid principal {text!r}", hint="For example alice, or * for everyone."
        )
    return _USER + name


def parse_host(text: str) -> str:
    """Return an address as the broker writes it, or ``*``."""
    if text == WILDCARD:
        return text
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise UsageError(
            f"invalid address {text!r}: a rule names one IP address, or * for all",
            hint="The broker knows no names of hosts, and rules have no networks.",
        ) from None


def parse_resource(text: str, *, literal: bool = False) -> tuple[ResourceKind, Pattern, str]:
    """Return kind, pattern and name for ``topic:orders``, ``topic:orders*`` or ``cluster``.

    A ``*`` at the end stands for all names that begin so; with ``literal`` it is part of the name.
    """
    name_of_kind, colon, name = text.partition(":")
    kind = KINDS.get(name_of_kind.lower())
    if kind is None or (not colon and kind is not ResourceKind.CLUSTER) or (colon and not name):
        raise UsageError(
            f"invalid resource {text!r}: use KIND:NAME",
            hint=f"Kinds are {', '.join(KINDS)}; e.g. topic:orders, group:g*, cluster.",
        )
    if kind is ResourceKind.CLUSTER:
        return kind, Pattern.LITERAL, CLUSTER_NAME
    if name.endswith(WILDCARD) and name != WILDCARD and not literal:
        return kind, Pattern.PREFIXED, name[:-1]
    return kind, Pattern.LITERAL, name


def parse_operations(text: str) -> list[Operation]:
    """Return the operations of ``read,write``."""
    found = []
    for each in text.split(","):
        operation = OPERATIONS.get(each.strip().lower().replace("_", "-"))
        if operation is None:
            raise UsageError(
                f"invalid operation {each.strip()!r}", hint=f"Use one of {', '.join(OPERATIONS)}."
            )
        found.append(operation)
    return found


def resource_text(rule: Rule) -> str:
    """Return a rule's resource as ``parse_resource`` takes it."""
    if rule.kind is ResourceKind.CLUSTER:
        return "cluster"
    name = f"{rule.name}*" if rule.pattern is Pattern.PREFIXED else rule.name
    return f"{_KIND_NAMES[rule.kind]}:{name}"


def operation_text(operation: Operation) -> str:
    """Return an operation as ``parse_operations`` takes it."""
    return operation.name.lower().replace("_", "-")


def rule_text(rule: Rule) -> str:
    """Return a rule as a sentence."""
    verb = "allow" if rule.allows else "deny"
    source = "" if rule.host == WILDCARD else f" from {rule.host}"
    return f"{verb} {rule.principal} {operation_text(rule.operation)} {resource_text(rule)}{source}"


def rule_dict(rule: Rule) -> dict[str, object]:
    """Return a rule for JSON."""
    return {
        "principal": rule.principal,
        "effect": "allow" if rule.allows else "deny",
        "operation": operation_text(rule.operation),
        "resource": resource_text(rule),
        "pattern": rule.pattern.name.lower(),
        "name": rule.name,
        "host": rule.host,
    }
