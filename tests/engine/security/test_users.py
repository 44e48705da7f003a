"""Users and logins of a whole engine in memory, and the topic that stores them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.support import query, running
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.authorize import Principal
from tidemill.engine.engine import Engine
from tidemill.engine.errors import ClusterAuthorizationError
from tidemill.engine.security import logins
from tidemill.errors import UnknownTopicOrPartitionError
from tidemill.log.errors import InvalidTopicError
from tidemill.state.internal_topics import SECURITY_TOPIC
from tidemill.state.security import scram
from tidemill.state.security.scram import credential
from tidemill.state.security.types import ScramMechanism

SHA_256, SHA_512 = ScramMechanism
ALICE = credential(SHA_256, "secret", b"0123456789abcdef")


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The passwords that were hashed."""
    found: list[tuple[Any, ...]] = []
    check = scram.is_password

    def counting(*arguments: Any) -> bool:
        found.append(arguments)
        return check(*arguments)

    monkeypatch.setattr("tidemill.engine.security.logins.is_password", counting)
    return found


async def test_users_survive_a_restart(fs: FaultyFileSystem) -> None:
    async with running(fs=fs) as engine:
        assert not engine.logins.has_users
        await engine.security.alter_users([("alice", SHA_256, ALICE)], {})
        decoy = engine.logins.decoy("nobody", SHA_256)
    async with running(fs=fs) as engine:
        assert engine.logins.credentials("alice", SHA_256) == ALICE
        assert engine.logins.credentials("alice", SHA_512) is None
        assert engine.logins.credentials("bob", SHA_256) is None
        assert engine.logins.decoy("nobody", SHA_256) == decoy
        assert engine.security.users() == {"alice": [(SHA_256, 4096)]}


async def test_a_password_is_hashed_once_until_it_changes(
    hashes: list[Any], engine: Engine
) -> None:
    await engine.security.alter_users([("alice", SHA_256, ALICE)], {})
    assert [await engine.logins.verify_plain("alice", "secret") for _ in range(3)] == [True] * 3
    assert len(hashes) == 1
    assert not await engine.logins.verify_plain("alice", "wrong")
    assert await engine.logins.verify_plain("alice", "secret")
    assert len(hashes) == 2
    changed = credential(SHA_256, "new", b"0123456789abcdef")
    await engine.security.alter_users([("alice", SHA_256, changed)], {})
    assert not await engine.logins.verify_plain("alice", "secret")
    assert await engine.logins.verify_plain("alice", "new")
    await engine.security.alter_users([("alice", SHA_256, None)], {})
    assert not await engine.logins.verify_plain("alice", "new")
    assert engine.logins._checked == {}


async def test_an_unknown_user_costs_the_same_hashes(hashes: list[Any], engine: Engine) -> None:
    await engine.security.alter_users([("alice", SHA_256, ALICE)], {})
    for user in ("alice", "nobody", ""):
        hashes.clear()
        assert not await engine.logins.verify_plain(user, "wrong")
        assert not await engine.logins.verify_plain(user, "x" * 1_000_000)
        assert [(each[0], each[2].iterations) for each in hashes] == [(SHA_256, 4096)] * 2
        assert max(len(each[1]) for each in hashes) == logins.LONGEST_PASSWORD


async def test_a_password_that_changes_during_its_check_is_refused(engine: Engine) -> None:
    await engine.security.alter_users([("alice", SHA_256, ALICE)], {})
    checking = asyncio.create_task(engine.logins.verify_plain("alice", "secret"))
    changed = credential(SHA_256, "new", b"0123456789abcdef")
    known = engine._security_log.state.users["alice"]
    await asyncio.sleep(0)
    known[SHA_256] = changed
    assert not await checking


async def test_no_client_can_read_or_write_the_topic_of_security(engine: Engine) -> None:
    await engine.security.alter_users([("alice", SHA_256, ALICE)], {})
    asked = query((SECURITY_TOPIC, 0, 0))
    (result,) = await engine.records.read(asked)
    assert isinstance(result.error, UnknownTopicOrPartitionError)
    (again,) = engine.records.read_now(asked) or [result]
    assert isinstance(again.error, UnknownTopicOrPartitionError)
    assert SECURITY_TOPIC not in {topic.name for topic in engine.topics.all()}
    (deleted,) = await engine.topics.delete([SECURITY_TOPIC])
    assert isinstance(deleted, InvalidTopicError)


async def test_with_a_super_user_others_need_rules(fs: FaultyFileSystem) -> None:
    async with running(fs=fs, security={"super_users": "User:root; User:boss"}) as engine:
        for name in ("root", "boss"):
            door = engine.door(Principal(name))
            assert door.access.is_unrestricted
            await door.security.alter_users([("alice", SHA_256, ALICE)], {})
        alice = engine.door(Principal("alice"))
        with pytest.raises(ClusterAuthorizationError):
            await alice.security.alter_users([("bob", SHA_256, ALICE)], {})
        assert not engine.door().access.is_unrestricted
        assert engine.inner_door().access.is_unrestricted


async def test_a_stored_super_user_counts_from_the_next_start(fs: FaultyFileSystem) -> None:
    async with running(fs=fs) as engine:
        await engine.user_admin.set_admin("root", is_admin=True)
        assert engine.door().access.is_unrestricted
    async with running(fs=fs) as engine:
        assert engine.door(Principal("root")).access.is_unrestricted
        assert not engine.door().access.is_unrestricted
        await engine.user_admin.set_admin("root", is_admin=False)
    async with running(fs=fs) as engine:
        assert engine.door().access.is_unrestricted
