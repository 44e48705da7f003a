"""Requests about rules of access, over the Kafka protocol. This module must not print.

librdkafka offers them too, but neither transactional ids with all versions, nor users, nor quotas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.kafka_client.admin.requests import BrokerRequests, check_error_code
from tidemill.kafka_client.errors import RefusedError
from tidemill.protocols.kafka.operations import ANY, EFFECTS, KINDS, OPERATIONS, PATTERNS
from tidemill.state.security.types import Rule, RuleFilter

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
_VERSIONS = (1, 3)
_SENT_TOGETHER = 500
_SECURITY_DISABLED = 54

_NUMBERS: dict[object, int] = {
    value: number for table in (KINDS, OPERATIONS, PATTERNS) for number, value in table.items()
}


def list_rules(requests: BrokerRequests) -> list[Rule]:
    """Return all rules of the cluster."""
    response = _ask(requests, DESCRIBE_ACLS, _filter_tree(RuleFilter()))
    _check(response.error_code, "the rules", response.error_message)
    return [
        Rule(
            KINDS[each.resource_type],
            PATTERNS[each.pattern_type],
            each.resource_name,
            acl.principal,
            acl.host,
            OPERATIONS[acl.operation],
            EFFECTS[acl.permission_type],
        )
        for each in response.resources
        for acl in each.acls
    ]


def create_rules(requests: BrokerRequests, rules: Sequence[Rule]) -> None:
    """Create rules. Those that exist stay as they are."""
    for start in range(0, len(rules), _SENT_TOGETHER):
        part = rules[start : start + _SENT_TOGETHER]
        response = _ask(requests, CREATE_ACLS, {"creations": [_creation(each) for each in part]})
        for result in response.results:
            _check(result.error_code, "the rule", result.error_message)


def delete_rules(requests: BrokerRequests, rules: Sequence[Rule]) -> None:
    """Delete exactly these rules."""
    for start in range(0, len(rules), _SENT_TOGETHER):
        part = rules[start : start + _SENT_TOGETHER]
        filters = [
            _filter_tree(
                RuleFilter(
                    each.kind,
                    frozenset({each.pattern}),
                    each.name,
                    each.principal,
                    each.host,
                    each.operation,
                    each.allows,
                )
            )
            for each in part
        ]
        response = _ask(requests, DELETE_ACLS, {"filters": filters})
        for result in response.filter_results:
            _check(result.error_code, "the rule", result.error_message)


def _check(code: int, subject: str, message: str | None) -> None:
    """Check an error code. A broker that knows no rules says in its second sentence what to do."""
    try:
        check_error_code(code, subject, message)
    except RefusedError as error:
        reason, end, hint = error.reason.partition(". ")
        if code != _SECURITY_DISABLED or not end:
            raise
        raise RefusedError(code, subject, f"{reason}.", hint=hint) from error


def _ask(requests: BrokerRequests, api: int, tree: dict[str, Any]) -> Any:
    return requests.ask(None, api, _VERSIONS, tree)


def _filter_tree(wanted: RuleFilter) -> dict[str, Any]:
    patterns = list(wanted.patterns)
    return {
        "resource_type_filter": _NUMBERS.get(wanted.kind, ANY),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": _NUMBERS[patterns[0]] if len(patterns) == 1 else ANY,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": _NUMBERS.get(wanted.operation, ANY),
        "permission_type": ANY if wanted.allows is None else 3 if wanted.allows else 2,
    }


def _creation(rule: Rule) -> dict[str, Any]:
    return {
        "resource_type": _NUMBERS[rule.kind],
        "resource_name": rule.name,
        "resource_pattern_type": _NUMBERS[rule.pattern],
        "principal": rule.principal,
        "host": rule.host,
        "operation": _NUMBERS[rule.operation],
        "permission_type": 3 if rule.allows else 2,
    }
