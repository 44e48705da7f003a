"""The processor time of a JVM is told by what its threads do."""

from __future__ import annotations

import os

import pytest

from bench import cpu, threads


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("Executor task l", threads.TASKS),
        ("C2 CompilerThre", threads.COMPILERS),
        ("GC Thread#0", threads.GARBAGE),
        ("G1 Conc#0", threads.GARBAGE),
        ("rocksdb:low", threads.ROCKSDB),
        ("stream executio", threads.OTHER),
    ],
)
def test_threads_are_grouped_by_the_start_of_their_names(name: str, group: str) -> None:
    assert threads.group_of(name) == group


def test_all_groups_together_are_the_time_of_the_process() -> None:
    nothing = threads.Times(0.0, {})
    before = cpu.seconds(os.getpid())
    found = threads.difference(threads.times(os.getpid()), nothing)
    after = cpu.seconds(os.getpid())
    assert before - 0.1 <= sum(found.values()) <= after + 0.1


def test_a_difference_counts_threads_that_began_and_those_that_ended() -> None:
    before = threads.Times(10.0, {1: (threads.TASKS, 4.0), 2: (threads.TASKS, 5.0)})
    after = threads.Times(16.0, {1: (threads.TASKS, 6.0), 3: (threads.COMPILERS, 1.0)})
    found = threads.difference(after, before)
    assert found == dict.fromkeys(threads.GROUPS, 0.0) | {
        threads.TASKS: 2.0,
        threads.COMPILERS: 1.0,
        threads.OTHER: 3.0,
    }
