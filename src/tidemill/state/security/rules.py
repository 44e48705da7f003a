"""The rules of access, found by resource and judged as Apache Kafka's StandardAuthorizer does.

The order is: super user; a DENY that matches; an ALLOW that matches; and if no rule at all is for
the resource, ``allow.everyone.if.no.acl.found``. Knows no door and no protocol.

Source: Apache Kafka 4.3, StandardAuthorizerData; KIP-11, KIP-290, KIP-679.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tidemill.state.security.types import (
    CLUSTER_NAME,
    EVERYONE,
    WILDCARD,
    Operation,
    Pattern,
    ResourceKind,
    Rule,
)

IMPLIES = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""An operation -> those that imply it, in rules that allow. A rule that denies implies nothing."""


class Reason(enum.StrEnum):
    """The reason of a decision."""

    SUPER_USER = "super-user"
    DENIED = "rule-denies"
    ALLOWED = "rule-allows"
    NO_RULES = "no-rule-for-the-resource"
    NOT_ALLOWED = "no-rule-allows"


class Decision(NamedTuple):
    """A decision about one access.

    Attributes:
        rule: the rule that decides, if one does.
    """

    allowed: bool
    reason: Reason
    rule: Rule | None = None


class _OfKind:
    """The rules for one kind of resource."""

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, dict[Rule, None]] = {}
        self.prefixed: dict[str, dict[Rule, None]] = {}
        self.lengths: Counter[int] = Counter()
        """Length of a prefix -> how many prefixes have it."""

    def add(self, rule: Rule) -> None:
        table = self.literal if rule.pattern is Pattern.LITERAL else self.prefixed
        rules = table.setdefault(rule.name, {})
        if not rules and rule.pattern is Pattern.PREFIXED:
            self.lengths[len(rule.name)] += 1
        rules[rule] = None

    def remove(self, rule: Rule) -> None:
        table = self.literal if rule.pattern is Pattern.LITERAL else self.prefixed
        rules = table[rule.name]
        del rules[rule]
        if rules:
            return
        del table[rule.name]
        if rule.pattern is Pattern.PREFIXED:
            self.lengths[len(rule.name)] -= 1
            if not self.lengths[len(rule.name)]:
                del self.lengths[len(rule.name)]

    def matching(self, name: str) -> Iterator[Rule]:
        """Yield the rules whose patterns match a resource."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())


class Rules:
    """All rules, by kind and name of their resources."""

    def __init__(self, rules: Collection[Rule] = ()) -> None:
        self._all: dict[Rule, None] = {}
        self._kinds = {kind: _OfKind() for kind in ResourceKind}
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._all)

    def __contains__(self, rule: Rule) -> bool:
        return rule in self._all

    def add(self, rule: Rule) -> None:
        """Add a rule. One that exists stays as it is."""
        self._all[rule] = None
        self._kinds[rule.kind].add(rule)

    def remove(self, rule: Rule) -> None:
        """Remove a rule if it exists."""
        if rule in self._all:
            del self._all[rule]
            self._kinds[rule.kind].remove(rule)

    def decide(
        self,
        principal: str,
        host: str,
        operation: Operation,
        kind: ResourceKind,
        name: str,
        *,
        super_users: Collection[str] = (),
        allow_if_no_rules: bool = False,
    ) -> Decision:
        """Decide about one access.

        Args:
            principal: ``User:alice``.
            host: the address of the client.
            name: of the resource. That of the cluster is ``CLUSTER_NAME`` or empty.
            super_users: principals that are allowed everything.
            allow_if_no_rules: ``allow.everyone.if.no.acl.found``.
        """
        if principal in super_users:
            return Decision(True, Reason.SUPER_USER)
        if kind is ResourceKind.CLUSTER:
            name = name or CLUSTER_NAME
        found = False
        allowing: Rule | None = None
        for rule in self._kinds[kind].matching(name):
            found = True
            if not applies(rule, principal, host, operation):
                continue
            if not rule.allows:
                return Decision(False, Reason.DENIED, rule)
            allowing = allowing or rule
        if allowing is not None:
            return Decision(True, Reason.ALLOWED, allowing)
        if not found:
            return Decision(allow_if_no_rules, Reason.NO_RULES)
        return Decision(False, Reason.NOT_ALLOWED)

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind
    ) -> bool:
        """Return whether the rules allow an operation on at least one resource of a kind.

        That is not so if each resource that a rule allows is denied by another one.
        """
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        allowed: list[Rule] = []
        for rule in _rules_of(self._kinds[kind]):
            if (
                rule.principal not in (principal, EVERYONE)
                or rule.host not in (host, WILDCARD)
                or rule.operation not in (operation, Operation.ALL)
            ):
                continue
            if rule.allows:
                allowed.append(rule)
            elif rule.pattern is Pattern.PREFIXED:
                denied_prefixes.add(rule.name)
            elif rule.name == WILDCARD:
                return False
            else:
                denied_names.add(rule.name)
        return any(_is_reachable(rule, denied_names, denied_prefixes) for rule in allowed)


def applies(rule: Rule, principal: str, host: str, operation: Operation) -> bool:
    """Return whether a rule is about this principal, host and operation."""
    if rule.principal not in (principal, EVERYONE) or rule.host not in (host, WILDCARD):
        return False
    if rule.operation in (operation, Operation.ALL):
        return True
    return rule.allows and rule.operation in IMPLIES.get(operation, ())


def _rules_of(kind: _OfKind) -> Iterator[Rule]:
    for table in (kind.literal, kind.prefixed):
        for rules in table.values():
            yield from rules


def _is_reachable(rule: Rule, denied_names: set[str], denied_prefixes: set[str]) -> bool:
    """Return whether a rule that allows has a resource that no other rule denies."""
    if rule.pattern is Pattern.LITERAL:
        if rule.name == WILDCARD:
            return True
        if rule.name in denied_names:
            return False
    return not any(rule.name[:end] in denied_prefixes for end in range(1, len(rule.name) + 1))
