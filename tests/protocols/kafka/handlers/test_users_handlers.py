"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

from tests.protocols.kafka.broker import Broker
from tests.protocols.kafka.trees import Tree
from tidemill.state.security.scram import credential, salted
from tidemill.state.security.types import ScramMechanism

DESCRIBE, ALTER = 50, 51
SHA_256, SHA_512 = ScramMechanism
SALT = b"0123456789abcdef"


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> Tree:
    of = SHA_512 if mechanism == 2 else SHA_256
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": SALT,
        "salted_password": salted(of, "secret", SALT, 4096),
    }


def deletion(name: str, mechanism: int = 1) -> Tree:
    return {"name": name, "mechanism": mechanism}


def alter(broker: Broker, *changes: Tree) -> dict[str, int]:
    tree = {
        "deletions": [each for each in changes if "salt" not in each],
        "upsertions": [each for each in changes if "salt" in each],
    }
    results = broker.call(ALTER, 0, tree)["results"]
    return {each["user"]: each["error_code"] for each in results}


def described(broker: Broker, *names: str) -> Tree:
    users = [{"name": name} for name in names] or None
    answer = broker.call(DESCRIBE, 0, {"users": users})
    assert answer["error_code"] == 0
    return {
        each["user"]: each["error_code"]
        or [(info["mechanism"], info["iterations"]) for info in each["credential_infos"]]
        for each in answer["results"]
    }


def test_without_users_none_are_described(broker: Broker) -> None:
    assert described(broker) == {}
    assert described(broker, "ann") == {"ann": 91}


def test_users_are_created_described_and_deleted(broker: Broker) -> None:
    changes = upsertion("ann"), upsertion("ann", 2), upsertion("bob")
    assert alter(broker, *changes) == {"ann": 0, "bob": 0}
    assert described(broker) == {"ann": [(1, 4096), (2, 4096)], "bob": [(1, 4096)]}
    assert broker.engine.logins.credentials("ann", SHA_512) == credential(SHA_512, "secret", SALT)
    assert alter(broker, deletion("ann", 2), deletion("bob")) == {"ann": 0, "bob": 0}
    assert described(broker) == {"ann": [(1, 4096)]}


def test_errors_are_those_of_apache_kafka(broker: Broker) -> None:
    assert alter(broker, deletion("ann")) == {"ann": 91}
    assert alter(broker, upsertion("ann"), upsertion("ann")) == {"ann": 92}
    assert alter(broker, upsertion("")) == {"": 93}
    assert alter(broker, upsertion("ann", iterations=4095)) == {"ann": 93}
    assert alter(broker, upsertion("ann", iterations=16385)) == {"ann": 93}
    assert alter(broker, upsertion("ann", 3), upsertion("bob")) == {"ann": 33, "bob": 0}
    assert described(broker, "bob", "bob") == {"bob": 92}


def test_a_request_with_too_many_changes_is_refused_as_a_whole(broker: Broker) -> None:
    one = upsertion("u")
    found = alter(broker, *({**one, "name": f"u{number}"} for number in range(251)))
    assert set(found.values()) == {44}
    assert described(broker) == {}
