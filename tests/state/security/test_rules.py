"""Rules decide as Apache Kafka's StandardAuthorizer: compared with a model of thirty lines."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.state.security.rules import Reason, Rules
from tidemill.state.security.types import (
    Operation,
    Pattern,
    ResourceKind,
    Rule,
    RuleFilter,
)

Op = Operation
TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
NAMES = ["a", "ab", "abc", "b", "*"]
PRINCIPALS = ["User:alice", "User:bob", "User:*", "Group:alice"]
HOSTS = ["*", "10.0.0.1", "10.0.0.2"]
OPERATIONS = [Op.READ, Op.WRITE, Op.ALTER, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS]

rules = st.builds(
    Rule,
    kind=st.sampled_from([TOPIC, GROUP]),
    pattern=st.sampled_from(Pattern),
    name=st.sampled_from(NAMES),
    principal=st.sampled_from(PRINCIPALS),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from([*OPERATIONS, Op.ALL]),
    allows=st.booleans(),
)


# --- the model -----------------------------------------------------------------------------------


def is_for(rule: Rule, name: str) -> bool:
    if rule.pattern is Pattern.PREFIXED:
        return name.startswith(rule.name)
    return rule.name in (name, "*")


def naive(
    given_rules: Collection[Rule],
    principal: str,
    host: str,
    operation: Operation,
    name: str,
    super_users: Collection[str],
    everyone: bool,
) -> bool:
    if principal in super_users:
        return True
    found = [rule for rule in given_rules if rule.kind is TOPIC and is_for(rule, name)]
    if not found:
        return everyone
    mine = [
        rule
        for rule in found
        if rule.principal in (principal, "User:*") and rule.host in (host, "*")
    ]
    if any(not rule.allows and rule.operation in (operation, Op.ALL) for rule in mine):
        return False
    enough = {operation, Op.ALL}
    if operation is Op.DESCRIBE:
        enough |= {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}
    if operation is Op.DESCRIBE_CONFIGS:
        enough |= {Op.ALTER_CONFIGS}
    return any(rule.allows and rule.operation in enough for rule in mine)


@settings(max_examples=400)
@given(
    st.lists(rules, max_size=8),
    st.lists(rules, max_size=3),
    st.sampled_from(PRINCIPALS[:2]),
    st.sampled_from(HOSTS[1:]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([*NAMES, "abcd", "zz"]),
    st.booleans(),
    st.sampled_from([(), ("User:bob",)]),
)
def test_decisions_are_those_of_the_model(
    added: list[Rule],
    removed: list[Rule],
    principal: str,
    host: str,
    operation: Operation,
    name: str,
    everyone: bool,
    super_users: tuple[str, ...],
) -> None:
    index = Rules(added)
    for rule in removed + added[::2]:
        index.remove(rule)
    left = [rule for rule in dict.fromkeys(added) if rule not in removed + added[::2]]
    assert list(index) == left
    found = index.decide(
        principal,
        host,
        operation,
        TOPIC,
        name,
        super_users=super_users,
        allow_if_no_rules=everyone,
    )
    expected = naive(left, principal, host, operation, name, super_users, everyone)
    assert found.allowed is expected
    if found.rule is not None:
        assert found.rule.allows is expected
        assert is_for(found.rule, name)


@settings(max_examples=300)
@given(st.lists(rules, max_size=6), st.sampled_from(PRINCIPALS[:2]), st.sampled_from(HOSTS[1:]))
def test_an_operation_on_any_resource_is_allowed_if_it_is_on_one(
    given_rules: list[Rule], principal: str, host: str
) -> None:
    """A name behind each prefix and each literal name tells what the rules as a whole allow."""
    names = {rule.name + end for rule in given_rules for end in ("", "!")} - {"*", "*!"} | {"new!"}
    literal_stars = [
        each for each in given_rules if not (each.pattern is Pattern.PREFIXED and each.name == "*")
    ]
    expected = any(
        naive(literal_stars, principal, host, Op.WRITE, name, (), False) for name in names
    )
    index = Rules(literal_stars)
    assert index.allows_any(principal, host, Op.WRITE, TOPIC) is expected


# --- the rules of the original, one by one -------------------------------------------------------

ALLOW_READ = Rule(TOPIC, Pattern.LITERAL, "orders", "User:alice", "*", Op.READ, True)
DENY_READ = ALLOW_READ._replace(allows=False)


def decide(given_rules: Collection[Rule], operation: Operation, name: str = "orders") -> object:
    found = Rules(given_rules).decide("User:alice", "10.0.0.1", operation, TOPIC, name)
    return found.allowed, found.reason


@pytest.mark.parametrize("operation", [Op.READ, Op.WRITE, Op.DELETE, Op.ALTER])
def test_describe_is_implied_where_a_rule_allows(operation: Operation) -> None:
    assert decide([ALLOW_READ._replace(operation=operation)], Op.DESCRIBE) == (
        True,
        Reason.ALLOWED,
    )


def test_a_rule_that_denies_implies_nothing() -> None:
    everything = ALLOW_READ._replace(operation=Op.ALL)
    assert decide([DENY_READ, everything], Op.DESCRIBE) == (True, Reason.ALLOWED)
    assert decide([DENY_READ, everything], Op.READ) == (False, Reason.DENIED)


def test_a_rule_for_another_principal_ends_what_is_allowed_without_rules() -> None:
    other = Rules([ALLOW_READ._replace(principal="User:bob")])
    for name, expected in (("orders", Reason.NOT_ALLOWED), ("payments", Reason.NO_RULES)):
        found = other.decide("User:alice", "h", Op.READ, TOPIC, name, allow_if_no_rules=True)
        assert (found.allowed, found.reason) == (expected is Reason.NO_RULES, expected)


def test_the_cluster_has_one_name() -> None:
    rule = ALLOW_READ._replace(kind=CLUSTER, name="kafka-cluster", operation=Op.ALTER)
    for name in ("", "kafka-cluster"):
        assert Rules([rule]).decide("User:alice", "h", Op.DESCRIBE, CLUSTER, name).allowed


def test_a_million_characters_cost_no_more_than_the_prefixes_there_are() -> None:
    index = Rules([ALLOW_READ._replace(pattern=Pattern.PREFIXED, name="a" * n) for n in (1, 2, 3)])
    assert index.decide("User:alice", "h", Op.READ, TOPIC, "a" * 1_000_000).allowed


# --- filters -------------------------------------------------------------------------------------

PREFIXED = ALLOW_READ._replace(pattern=Pattern.PREFIXED, name="ord")
STAR = ALLOW_READ._replace(name="*")
ALL_RULES = [ALLOW_READ, PREFIXED, STAR, DENY_READ._replace(name="other", host="10.0.0.1")]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (RuleFilter(), ALL_RULES),
        (RuleFilter(name="orders"), ALL_RULES[:1]),
        (RuleFilter(name="orders", matches=True), ALL_RULES[:3]),
        (RuleFilter(name="ord", patterns=frozenset({Pattern.PREFIXED})), [PREFIXED]),
        (RuleFilter(name="ord", patterns=frozenset({Pattern.LITERAL})), []),
        (RuleFilter(allows=False), ALL_RULES[3:]),
        (RuleFilter(host="10.0.0.1"), ALL_RULES[3:]),
        (RuleFilter(principal="User:bob"), []),
        (RuleFilter(operation=Op.WRITE), []),
        (RuleFilter(kind=GROUP), []),
    ],
)
def test_a_filter_selects(wanted: RuleFilter, expected: list[Rule]) -> None:
    assert [rule for rule in ALL_RULES if wanted.selects(rule)] == expected
