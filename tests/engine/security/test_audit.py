"""The audit log: bounded, escaped, and written for refusals and not for filters."""

from __future__ import annotations

import pytest

from tests.engine.support import running
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logged import logged
from tidemill.clock import ManualClock
from tidemill.engine.authorize import TOPIC, Operation, Principal, Resource
from tidemill.engine.errors import TopicAuthorizationError
from tidemill.engine.security import audit
from tidemill.engine.security.audit import AuditLog, printable

ALICE, BOB = Principal("alice"), Principal("bob")
T = Resource(TOPIC, "t")


def test_a_principal_has_ten_lines_in_a_second_and_the_rest_are_counted() -> None:
    clock = ManualClock(1_000_000)
    written = AuditLog(clock)
    with logged("debug") as lines:
        for _ in range(1000):
            written.report(ALICE, Operation.READ, T, "10.0.0.1", allowed=False)
        written.report(BOB, Operation.READ, T, "10.0.0.1", allowed=False)
        clock.advance(1000)
        written.report(ALICE, Operation.WRITE, T, "10.0.0.1", allowed=True)
    assert [each["principal"] for each in lines] == ["User:alice"] * 10 + ["User:bob", "User:alice"]
    assert lines[0] == {
        "event": "access.denied",
        "log_level": "info",
        "principal": "User:alice",
        "operation": "read",
        "kind": "topic",
        "name": "t",
        "host": "10.0.0.1",
    }
    assert lines[-1]["event"] == "access.allowed"
    assert lines[-1]["log_level"] == "debug"
    assert lines[-1]["left_out"] == "990"


def test_a_million_principals_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_PRINCIPALS", 10)
    written = AuditLog(ManualClock(0))
    for number in range(1000):
        written.report(Principal(f"u{number}"), Operation.READ, T, "", allowed=False)
    assert len(written._counts) <= 10


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("größe", "größe"),
        ("a\nlevel=info", "a\\nlevel=info"),
        ("\x1b[2J", "\\x1b[2J"),
        ("x" * 1000, "x" * 200 + "…"),
    ],
)
def test_a_name_can_not_forge_a_line(text: str, shown: str) -> None:
    assert printable(text) == shown


async def test_refusals_are_reported_and_lists_that_leave_out_are_not(fs: FaultyFileSystem) -> None:
    async with running(fs=fs, security={"super_users": "User:root"}) as engine:
        await engine.inner_door().topics.ensure("t")
        alice = engine.door(ALICE, "10.0.0.1")
        with logged("debug") as lines:
            assert alice.topics.all() == []
            assert lines == []
            with pytest.raises(TopicAuthorizationError):
                alice.topics.get("t")
    assert [(each["event"], each["name"]) for each in lines] == [("access.denied", "t")]
