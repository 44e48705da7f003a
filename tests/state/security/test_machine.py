"""The state machine of users, rules, permissions and quotas."""

from __future__ import annotations

import pytest

from tests.state.driver import MachineDriver, compacted
from tidemill.errors import TidemillError
from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.errors import InvalidRequestError, PolicyViolationError
from tidemill.state.security import machine
from tidemill.state.security.errors import (
    DuplicateUserError,
    InvalidCredentialError,
    UnknownUserError,
)
from tidemill.state.security.machine import Security, check_rule
from tidemill.state.security.scram import credential
from tidemill.state.security.types import (
    DEFAULT,
    Operation,
    Pattern,
    Permission,
    QuotaEntity,
    ResourceKind,
    Rule,
    ScramMechanism,
    TopicPermission,
)

SHA_256, SHA_512 = ScramMechanism
KEYS = credential(SHA_256, "secret", b"salt")
KEYS_512 = credential(SHA_512, "secret", b"salt")
RULE = Rule(ResourceKind.TOPIC, Pattern.LITERAL, "orders", "User:alice", "*", Operation.READ, True)


Driver = MachineDriver[Security]


@pytest.fixture
def driver() -> Driver:
    return MachineDriver(Security(b"at the start"))


def restarted(driver: Driver) -> Security:
    return MachineDriver(Security(b"at the start"), compacted(driver.log)).machine


def everything(state: Security) -> object:
    return (
        state.users,
        state.admins,
        list(state.rules),
        state.permissions,
        state.topic_permissions,
        state.quotas,
        state.decoy("nobody", SHA_256),
    )


def test_a_restart_finds_all_that_was_written(driver: Driver) -> None:
    state = driver.machine
    driver.run(state.alter_users([("alice", SHA_256, KEYS), ("alice", SHA_512, KEYS_512)]))
    driver.run(state.alter_users([("bob", SHA_256, KEYS)]))
    driver.run(state.alter_users([("bob", SHA_256, None)]))
    driver.run(state.set_admin("alice", is_admin=True))
    driver.run(state.create_rules([RULE, RULE._replace(allows=False), RULE._replace(name="b")]))
    driver.run(state.delete_rules([RULE._replace(name="b"), RULE._replace(name="c")]))
    driver.run(state.set_permission("alice", Permission("^$", "q.*", ".*")))
    driver.run(state.set_topic_permission("alice", "amq.topic", TopicPermission("a.*", "b.*")))
    driver.run(state.alter_quota(QuotaEntity("alice", DEFAULT), {"producer_byte_rate": 1e6}))
    driver.run(state.alter_quota(QuotaEntity(ip="10.0.0.1"), {"connection_creation_rate": 5}))
    driver.run(state.alter_quota(QuotaEntity(ip="10.0.0.1"), {"connection_creation_rate": None}))

    again = restarted(driver)
    assert everything(again) == everything(state)
    assert again.users == {"alice": {SHA_256: KEYS, SHA_512: KEYS_512}}
    assert again.quotas == {QuotaEntity("alice", DEFAULT): {"producer_byte_rate": 1e6}}
    assert list(again.rules) == [RULE, RULE._replace(allows=False)]


def test_a_record_has_no_password(driver: Driver) -> None:
    driver.run(driver.machine.alter_users([("alice", SHA_256, KEYS)]))
    assert b"secret" not in b"".join(each.value or b"" for each in driver.log[1:])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("", SHA_256, KEYS)], InvalidCredentialError),
        ([("a", SHA_256, KEYS._replace(iterations=4095))], InvalidCredentialError),
        ([("a", SHA_256, KEYS._replace(iterations=16_385))], InvalidCredentialError),
        ([("a", SHA_256, KEYS._replace(salt=b""))], InvalidCredentialError),
        ([("a" * 1025, SHA_256, KEYS)], InvalidCredentialError),
        ([("a", SHA_256, None)], UnknownUserError),
        ([("a", SHA_256, KEYS), ("a", SHA_256, KEYS)], DuplicateUserError),
    ],
)
def test_a_user_with_an_error_is_not_changed_and_others_are(
    driver: Driver, changes: list[tuple[str, ScramMechanism, object]], error: type[TidemillError]
) -> None:
    found = driver.run(driver.machine.alter_users([*changes, ("bob", SHA_512, KEYS_512)]))  # type: ignore[list-item]
    assert isinstance(found[changes[0][0]], error)
    assert found["bob"] is None
    assert list(driver.machine.users) == ["bob"]


def test_more_entries_than_allowed_are_refused(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "MOST_ENTRIES", 2)
    state = driver.machine
    users = driver.run(state.alter_users([(name, SHA_256, KEYS) for name in "abc"]))
    assert [type(each) for each in users.values()] == [type(None), type(None), PolicyViolationError]
    rules = driver.run(state.create_rules([RULE._replace(name=name) for name in "abca"]))
    assert [each is None for each in rules] == [True, True, False, True]
    for user in "ab":
        driver.run(state.set_permission(user, Permission("", "", "")))
        driver.run(state.alter_quota(QuotaEntity(user), {"request_percentage": 1}))
    with pytest.raises(PolicyViolationError):
        state.set_permission("c", Permission("", "", ""))
    with pytest.raises(PolicyViolationError):
        state.alter_quota(QuotaEntity("c"), {"request_percentage": 1})


@pytest.mark.parametrize(
    "rule",
    [
        RULE._replace(principal="alice"),
        RULE._replace(principal=":alice"),
        RULE._replace(principal="User:"),
        RULE._replace(name=""),
        RULE._replace(host=""),
        RULE._replace(name="x" * 1025),
        RULE._replace(kind=ResourceKind.EXCHANGE),
        RULE._replace(kind=ResourceKind.CLUSTER),
    ],
)
def test_an_invalid_rule_is_refused(rule: Rule) -> None:
    assert isinstance(check_rule(rule), InvalidRequestError)
    assert Security(b"").create_rules([rule]).records == []


def test_unknown_users_have_the_iterations_of_most_users_and_a_stable_salt(driver: Driver) -> None:
    before = driver.machine.decoy("nobody", SHA_256)
    many = KEYS._replace(iterations=8192)
    driver.run(driver.machine.alter_users([("a", SHA_256, many), ("b", SHA_256, many)]))
    driver.run(driver.machine.alter_users([("c", SHA_256, KEYS)]))
    after = driver.machine.decoy("nobody", SHA_256)
    assert (before.iterations, after.iterations) == (4096, 8192)
    assert restarted(driver).decoy("nobody", SHA_256) == after
    assert after.salt == before.salt


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"x", b"{}", InvalidRecordError),
        (b"{}", b"{}", InvalidRecordError),
        (b"[]", b"{}", InvalidRecordError),
        (b'["scram","a","SCRAM-SHA-256"]', b"x", InvalidRecordError),
        (b'["scram","a","SCRAM-SHA-256"]', b'{"v":1}', InvalidRecordError),
        (b'["scram","a","MD5"]', b'{"v":1}', InvalidRecordError),
        (b'["scram","a"]', b'{"v":1}', InvalidRecordError),
        (b'["admin"]', b'{"v":1}', InvalidRecordError),
        (b'["scram","a","SCRAM-SHA-256"]', b'{"v":2}', FormatVersionError),
        (b'["rule","TOPIC"]', b'{"v":1}', InvalidRecordError),
        (b'["rule","TOPIC","LITERAL",1,"User:a","*","READ","ALLOW"]', b"{}", InvalidRecordError),
        (b'["quota",1,null,null]', b'{"v":1}', InvalidRecordError),
        (b'["quota",null,null,null]', b'{"v":1,"values":{"a":"b"}}', InvalidRecordError),
        (b'["permission","a"]', b'{"v":1}', InvalidRecordError),
        (b'["topic-permission","a"]', b'{"v":1}', InvalidRecordError),
        (b'["secret"]', b'{"v":1,"secret":"?"}', InvalidRecordError),
    ],
)
def test_a_malformed_record_is_a_typed_error(
    key: bytes, value: bytes, error: type[TidemillError]
) -> None:
    with pytest.raises(error):
        Security(b"").replay(key, value)


def test_a_record_of_an_unknown_kind_is_reported() -> None:
    assert not Security(b"").replay(b'["other","x"]', b'{"v":1}')
