"""A share consumer that dies, or that hangs, while it holds records."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", minversion="2.16", reason="needs ShareConsumer")

from confluent_kafka.admin import AdminClient

from tests.crash.shares.processes import MemberProcess
from tests.interop.common import DEADLINE
from tests.interop.test_confluent_shares import set_configs
from tests.support.processes import poll_until
from tests.support.topics import write

COUNT = 40


@pytest.mark.parametrize(
    ("how", "lock_ms", "least_count"),
    [
        # Its connection closes, and what it holds returns at once; that is no delivery.
        (signal.SIGKILL, 3_600_000, 1),
        # Its connection remains, and only the lock time ends.
        pytest.param(signal.SIGSTOP, 5000, 2, marks=pytest.mark.slow),
    ],
    ids=["killed", "stopped"],
)
def test_another_member_gets_what_a_lost_one_held_and_not_what_it_had_accepted(
    bootstrap: str,
    admin: AdminClient,
    topic: str,
    group: str,
    tmp_path: Path,
    how: signal.Signals,
    lock_ms: int,
    least_count: int,
) -> None:
    set_configs(
        admin,
        group,
        share_record_lock_duration_ms=str(lock_ms),
        # A busy machine can lose the lock of a record several times before the test begins.
        share_delivery_count_limit="10",
    )
    write(bootstrap, topic, *(b"p:%d:" % number for number in range(COUNT)))

    lost = MemberProcess(bootstrap, group, topic, tmp_path / "lost.out", "hold")
    other = None
    try:
        poll_until(lambda: "H" in lost.kinds(), DEADLINE, "a member that holds records")
        lost.process.send_signal(how)
        accepted = set(lost.numbers("A"))
        held = set(lost.numbers("D")) - accepted
        other = MemberProcess(bootstrap, group, topic, tmp_path / "other.out")
        poll_until(
            lambda: set(other.numbers("S")) | accepted == set(range(COUNT)),
            DEADLINE,
            "the other member accepts the rest",
        )
    finally:
        lost.process.kill()
        if other is not None:
            other.process.kill()
    assert accepted
    assert held
    assert not accepted & set(other.numbers("D"))
    first: dict[int, int] = {}
    for number, count in other.lines("D"):
        first.setdefault(number, count)
    assert all(first[number] >= least_count for number in held)
