"""A worker is stopped, replaced, and resumed: each result is written once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.transactions import checker
from tests.crash.transactions.clients import CLIENTS, Job
from tests.crash.transactions.conftest import Broker, make_topics
from tests.crash.transactions.pipeline import Feeder, Worker
from tests.support.effort import in_nightly_runs
from tests.support.processes import assert_stays, poll_until

pytestmark = [pytest.mark.crash]

PARTITIONS = 2
RECORDS = 100
STEPS = "begin", "sent", "offsets"
NORMAL_RUNS = [
    *(("confluent-kafka", step) for step in STEPS),
    *((client, "sent") for client in CLIENTS if client != "confluent-kafka"),
]
"""The broker does the fencing: all clients at one step, and one client at all."""


@pytest.mark.parametrize(
    ("client", "step"),
    [
        *NORMAL_RUNS,
        *in_nightly_runs(
            *(each for each in itertools.product(CLIENTS, STEPS) if each not in NORMAL_RUNS)
        ),
    ],
)
def test_a_worker_that_comes_back_too_late_is_fenced_and_writes_nothing(
    shared_broker: Broker, tmp_path: Path, client: str, step: str
) -> None:
    broker, name = shared_broker, f"{client}-{step}"
    source, target = f"in-{name}", f"out-{name}"
    make_topics(broker.bootstrap, PARTITIONS, source, target)
    feeder = Feeder(broker.bootstrap, source, PARTITIONS)
    feeder.send(RECORDS)
    common = job(broker, tmp_path, name, client)
    newer = Worker(common)
    older = Worker(older_than(common, stop_at=step))
    try:
        older.start()
        poll_until(lambda: older.count("stopped", "fatal") == 1, 60, "the older worker is stopped")
        assert older.count("fatal") == 0, older.tail()
        newer.start()
        await_all_committed(broker, common)
        before = checker.read(broker.bootstrap, target, PARTITIONS, "read_uncommitted")
        older.resume()
        poll_until(older.ended, 60, "the older worker gives up")
        assert older.count("commit") == 0, older.tail()
        assert older.count("fatal") == 1, older.tail()
        feeder.send(RECORDS)
        await_all_committed(broker, common)
        assert newer.count("fatal", "abort") == 0, newer.tail()
    except BaseException as error:
        raise AssertionError(
            f"{error!r}\nolder {older.tail()}\nnewer {newer.tail()}\n{broker.log()}"
        ) from error
    finally:
        older.kill()
        newer.kill()
    outcome = checker.look(broker.bootstrap, source, target, PARTITIONS)
    checker.check(outcome, PARTITIONS)
    assert before.items() <= outcome.everything.items()
    assert len(outcome.everything) == len(before) + RECORDS, "the older worker wrote something"
    assert (outcome.aborted > 0) == (step != "begin")


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python"])  # those with KIP-447
def test_a_worker_waits_for_offsets_that_its_predecessor_may_still_commit(
    shared_broker: Broker, tmp_path: Path, client: str
) -> None:
    """With its own transactional id it fences no worker: pending offsets make it wait."""
    broker, name = shared_broker, f"pending-{client}"
    common = job(broker, tmp_path, name, client)
    make_topics(broker.bootstrap, PARTITIONS, common.source, common.target)
    Feeder(broker.bootstrap, common.source, PARTITIONS).send(RECORDS)
    older = Worker(older_than(common, stop_at="offsets"))
    newer = Worker(replace(common, transactional_id=f"{name}-newer"))
    try:
        older.start()
        poll_until(lambda: older.count("stopped", "fatal") == 1, 60, "the older worker is stopped")
        newer.start()
        poll_until(lambda: newer.count("up", "fatal") == 1, 60, "the newer one has started")
        assert_stays(lambda: newer.count("begin", "fatal") == 0, 1.5, "it begins no transaction")
        older.resume()
        await_all_committed(broker, common)
        assert older.count("commit") == 1, older.tail()
        assert newer.count("fatal", "abort") == 0, newer.tail()
    except BaseException as error:
        raise AssertionError(
            f"{error!r}\nolder {older.tail()}\nnewer {newer.tail()}\n{broker.log()}"
        ) from error
    finally:
        older.kill()
        newer.kill()
    outcome = checker.look(broker.bootstrap, common.source, common.target, PARTITIONS)
    checker.check(outcome, PARTITIONS)


def job(broker: Broker, folder: Path, name: str, client: str) -> Job:
    """Return the job of the newer one of two workers, which are the same member of the group."""
    return Job(
        client=client,
        bootstrap=broker.bootstrap,
        source=f"in-{name}",
        target=f"out-{name}",
        group=name,
        transactional_id=name,
        events=str(folder / "newer.events"),
        output=str(folder / "newer.log"),
        instance="member",
        transaction_ms=60_000,
        most=RECORDS // 4,
    )


def older_than(newer: Job, stop_at: str) -> Job:
    """Return the same job with a step at which the worker is stopped."""
    return replace(
        newer,
        events=newer.events.replace("newer.", "older."),
        output=newer.output.replace("newer.", "older."),
        stop_at=stop_at,
    )


def await_all_committed(broker: Broker, job: Job) -> None:
    """Wait until the group has committed the whole input."""
    wanted = checker.ends(broker.bootstrap, job.source, PARTITIONS, "read_uncommitted")
    poll_until(
        lambda: checker.committed(broker.bootstrap, job.group, job.source, PARTITIONS) == wanted,
        60,
        "all input is committed",
        interval=0.05,
    )
