"""The fakes have the signatures of the engine's parts, so that handlers meet the same in both."""

from __future__ import annotations

import inspect

import pytest

from tests.protocols.kafka import fake_engine, fake_engine_admin
from tests.protocols.kafka.fake_transactions import FakeTransactions
from tidemill.engine.groups.groups import Groups
from tidemill.engine.records.records import Records
from tidemill.engine.storage import Storage
from tidemill.engine.topics.configs import Configs
from tidemill.engine.topics.topics import Topics
from tidemill.engine.transactions.transactions import Transactions

FAKES: list[tuple[type, type]] = [
    (FakeTransactions, Transactions),
    (fake_engine.FakeRecords, Records),
    (fake_engine.FakeTopics, Topics),
    (fake_engine_admin.FakeTopics, Topics),
    (fake_engine_admin.FakeConfigs, Configs),
    (fake_engine_admin.FakeGroups, Groups),
    (fake_engine_admin.FakeStorage, Storage),
]
METHODS = [
    (fake, part, name)
    for fake, part in FAKES
    for name, member in vars(fake).items()
    if inspect.isfunction(member) and not name.startswith("_")
]


@pytest.mark.parametrize(("fake", "part", "name"), METHODS)
def test_fake_has_the_signature_of_the_part(fake: type, part: type, name: str) -> None:
    ours, theirs = getattr(fake, name), getattr(part, name)
    fields, expected = (inspect.signature(each).parameters for each in (ours, theirs))
    assert [(p.name, p.default) for p in fields.values()] == [
        (p.name, p.default) for p in expected.values()
    ]
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
