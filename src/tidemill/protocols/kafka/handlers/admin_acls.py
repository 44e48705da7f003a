"""Rules of access: DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, handles
from tidemill.protocols.kafka.error_codes import error_fields
from tidemill.protocols.kafka.operations import ANY, EFFECTS, KINDS, MATCH, OPERATIONS, PATTERNS
from tidemill.state.errors import InvalidRequestError
from tidemill.state.security.types import Pattern, ResourceKind, Rule, RuleFilter

V = TypeVar("V")

MOST_FILTERS = 1000
"""Most filters in a request: each looks at all rules."""

_NUMBERS: dict[object, int] = {
    value: number for table in (OPERATIONS, KINDS, PATTERNS) for number, value in table.items()
}


@handles(29, refused=error_fields)
async def handle_describe_acls(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeAcls, grouped by resource."""
    rules = ctx.door.security.rules()
    found = await ctx.turns.select(rules, rule_filter(request).selects)
    resources: dict[tuple[ResourceKind, str, Pattern], list[Rule]] = {}
    for rule in found:
        resources.setdefault((rule.kind, rule.name, rule.pattern), []).append(rule)
        await ctx.turns.pause_if_due()
    return {"resources": Each(_resource, resources.items())}


@handles(30)
async def handle_create_acls(ctx: RequestContext, request: Any) -> Tree:
    """Answer CreateAcls: each rule has its own result."""
    parsed: list[Rule | TidemillError] = []
    for each in request.creations:
        try:
            parsed.append(_rule(each))
        except InvalidRequestError as error:
            parsed.append(error)
        await ctx.turns.pause_if_due()
    try:
        rules = [each for each in parsed if isinstance(each, Rule)]
        created = iter(await ctx.door.security.create_rules(rules))
        errors = [next(created) if isinstance(each, Rule) else each for each in parsed]
    except TidemillError as error:
        errors = [error] * len(parsed)
    return {"results": Each(error_fields, errors)}


@handles(31)
async def handle_delete_acls(ctx: RequestContext, request: Any) -> Tree:
    """Answer DeleteAcls: each filter has its own result, with the rules that it deleted."""
    filters = request.filters
    try:
        if len(filters) > MOST_FILTERS:
            raise InvalidRequestError(
                f"the request has {len(filters)} filters", hint=f"Send at most {MOST_FILTERS}."
            )
        rules = ctx.door.security.rules_to_delete()
        found = [await _deleted(ctx, rules, each) for each in filters]
    except TidemillError as error:
        found = [error] * len(filters)
    return {"filter_results": Each(_filter_result, found)}


async def _deleted(
    ctx: RequestContext, rules: Sequence[Rule], asked: Any
) -> Sequence[Rule] | TidemillError:
    try:
        selected = await ctx.turns.select(rules, rule_filter(asked).selects)
        await ctx.door.security.delete_rules(selected)
    except TidemillError as error:
        return error
    return selected


# --- numbers and rules ---------------------------------------------------------------------------


def rule_filter(asked: Any) -> RuleFilter:
    """Return the filter of a request.

    Raises:
        InvalidRequestError: it has a number that is unknown.
    """
    pattern = asked.pattern_type_filter
    any_pattern = pattern in (ANY, MATCH)
    return RuleFilter(
        kind=_wanted(KINDS, asked.resource_type_filter, "resource type"),
        patterns=frozenset(Pattern)
        if any_pattern
        else frozenset({_known(PATTERNS, pattern, "pattern type")}),
        name=asked.resource_name_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=_wanted(OPERATIONS, asked.operation, "operation"),
        allows=_wanted(EFFECTS, asked.permission_type, "permission type"),
        matches=pattern == MATCH,
    )


def _rule(asked: Any) -> Rule:
    return Rule(
        _known(KINDS, asked.resource_type, "resource type"),
        _known(PATTERNS, asked.resource_pattern_type, "pattern type"),
        asked.resource_name,
        asked.principal,
        asked.host,
        _known(OPERATIONS, asked.operation, "operation"),
        _known(EFFECTS, asked.permission_type, "permission type"),
    )


def _known(table: Mapping[int, V], number: int, what: str) -> V:
    if number not in table:
        raise InvalidRequestError(f"invalid {what} {number}")
    return table[number]


def _wanted(table: Mapping[int, V], number: int, what: str) -> V | None:
    return None if number == ANY else _known(table, number, what)


# --- answers -------------------------------------------------------------------------------------


def _resource(item: tuple[tuple[ResourceKind, str, Pattern], list[Rule]]) -> Tree:
    (kind, name, pattern), rules = item
    return {
        "resource_type": _NUMBERS[kind],
        "resource_name": name,
        "pattern_type": _NUMBERS[pattern],
        "acls": Each(_entry, rules),
    }


def _entry(rule: Rule) -> Tree:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": _NUMBERS[rule.operation],
        "permission_type": 3 if rule.allows else 2,
    }


def _filter_result(found: Sequence[Rule] | TidemillError) -> Tree:
    if isinstance(found, TidemillError):
        return error_fields(found)
    return {"matching_acls": Each(_matching, found)}


def _matching(rule: Rule) -> Tree:
    return {
        "resource_type": _NUMBERS[rule.kind],
        "resource_name": rule.name,
        "pattern_type": _NUMBERS[rule.pattern],
        **_entry(rule),
    }
