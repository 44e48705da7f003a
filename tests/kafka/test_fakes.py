"""The fakes have the door's signatures: what handlers are tested with is what they will meet."""

from __future__ import annotations

import inspect

import pytest

from tests.kafka.fake_broker import FakeBroker
from tests.kafka.fake_transactions import FakeTransactions
from tidemill.broker.broker import Broker

METHODS = [
    (kind, name)
    for kind, names in (
        (FakeTransactions, [name for name in vars(FakeTransactions) if not name.startswith("_")]),
        (FakeBroker, ["produce", "fetch", "list_offset", "delete_records", "producers"]),
    )
    for name in names
]


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_fake_has_the_doors_signature(kind: type, name: str) -> None:
    fake, door = getattr(kind, name), getattr(Broker, name)
    ours, theirs = inspect.signature(fake).parameters, inspect.signature(door).parameters
    assert list(ours) == list(theirs)
    assert inspect.iscoroutinefunction(fake) == inspect.iscoroutinefunction(door)
