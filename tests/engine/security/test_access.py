"""Answers that a connection keeps, and the generation that ends them."""

from __future__ import annotations

import pytest

from tidemill.engine import authorize
from tidemill.engine.authorize import (
    CLUSTER,
    TOPIC,
    Access,
    Authorizer,
    Operation,
    Principal,
    Resource,
    ResourceKind,
)

ALICE = Principal("alice")
READ, WRITE = Operation.READ, Operation.WRITE


class Counting(Authorizer):
    """Counts the questions; the generation and the answer can change."""

    def __init__(self) -> None:
        self.generation = 1
        self.answer = True
        self.asked: list[tuple[Operation, Resource, str]] = []

    def authorize(
        self, principal: Principal, operation: Operation, resource: Resource, host: str = ""
    ) -> bool:
        self.asked.append((operation, resource, host))
        return self.answer


def test_a_question_is_asked_once_in_a_generation() -> None:
    authorizer = Counting()
    access = Access(ALICE, authorizer, "10.0.0.7")
    for _ in range(3):
        assert access.allows(READ, TOPIC, "a")
        assert access.allows_all(READ, TOPIC, ["a", "b"])
        assert access.allows(WRITE, TOPIC, "a")
        assert access.allows(READ, CLUSTER)
    assert len(authorizer.asked) == 4
    assert {host for _, _, host in authorizer.asked} == {"10.0.0.7"}
    authorizer.answer = False
    assert access.allows(READ, TOPIC, "a")
    authorizer.generation = 2
    assert not access.allows(READ, TOPIC, "a")
    assert not access.allows_all(READ, TOPIC, ["b", "a"])


def test_kept_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorize, "MOST_ANSWERS", 10)
    access = Access(ALICE, Counting())
    for number in range(1000):
        assert access.allows_all(READ, TOPIC, [f"t{number}", f"u{number}"])
    assert sum(len(each) for each in access._answers.values()) <= 11


def test_kinds_of_resources_and_operations_are_kept_apart() -> None:
    assert len({hash(each) for each in Operation}) == len(Operation)
    assert len({hash(each) for each in ResourceKind}) == len(ResourceKind)
