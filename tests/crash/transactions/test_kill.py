"""Consume, transform, produce, while worker and broker are killed: each result is written once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.ledger import Ledger
from tests.crash.load import Load
from tests.crash.transactions import checker
from tests.crash.transactions.clients import Job
from tests.crash.transactions.conftest import Broker, make_topics
from tests.crash.transactions.pipeline import Feeder, Pipeline
from tests.support.effort import chosen_seed, rounds

pytestmark = [pytest.mark.crash, pytest.mark.disk, pytest.mark.separate]

KILLS = rounds("CRASH_KILLS", 3, nightly=200)
"""Kills of workers, and the same number of kills of the broker, for each client."""

PARTITIONS = 4
PATIENCE_S = 600.0
"""Enough for a client that reconnects on a busy machine."""


@dataclass(frozen=True)
class Plan:
    """The way in which a client is used.

    Two workers share the partitions where the client lets the broker fence by generation (KIP-447);
    aiokafka does not, so only one worker with one transactional id is safe. A static member returns
    to its partitions immediately; a dynamic one is removed after the session timeout.
    """

    client: str
    workers: int
    static: bool
    session_ms: int


PLANS = [
    Plan("confluent-kafka", workers=2, static=False, session_ms=1000),
    Plan("kafka-python", workers=2, static=True, session_ms=6000),
    Plan("aiokafka", workers=1, static=True, session_ms=6000),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.client)
def test_each_result_is_written_once_and_in_order_after_many_kills(
    broker: Broker, tmp_path: Path, plan: Plan
) -> None:
    seed = chosen_seed(8)
    dice = random.Random(seed)
    make_topics(broker.bootstrap, PARTITIONS, "in", "out")
    job = Job(
        client=plan.client,
        bootstrap=broker.bootstrap,
        source="in",
        target="out",
        group="workers",
        transactional_id="worker",
        events="",
        output="",
        instance="member" if plan.static else None,
        session_ms=plan.session_ms,
        aborts=5,
    )
    feeder = Feeder(broker.bootstrap, "in", PARTITIONS)
    ledger = Ledger()
    readers = Load(broker.bootstrap, ledger)
    kills = ["worker"] * KILLS + ["broker"] * KILLS
    dice.shuffle(kills)
    with Pipeline(tmp_path, job, plan.workers) as pipeline:
        try:
            feeder.start()
            readers.read("out", PARTITIONS)
            pipeline.await_steps(4)
            for kill in kills:
                kill_one(kill, pipeline, broker, dice)
            feeder.stop()
            await_the_end(pipeline, broker.bootstrap)
        except BaseException as error:
            feeder.stop()
            raise AssertionError(
                f"{error!r}; seed {seed}\n{pipeline.report()}\n{broker.log()}"
            ) from error
        finally:
            readers.stop()
        print(
            f"seed {seed}: {pipeline.count('commit')} commits, {pipeline.count('aborted')} aborts, "
            f"{sum(worker.fenced for worker in pipeline.workers)} clients gave up"
        )
    outcome = checker.look(broker.bootstrap, "in", "out", PARTITIONS)
    print(f"{len(outcome.given)} records in, {outcome.aborted} aborted results")
    context = f"seed {seed}\n{broker.log()}"
    checker.check(outcome, PARTITIONS)
    assert feeder.acknowledged.items() <= outcome.given.items(), context
    assert outcome.aborted > 0, f"no transaction was aborted, so the test proves nothing; {context}"
    seen = {(partition, offset): value for (_, partition, offset), value in ledger.seen.items()}
    assert seen.items() <= outcome.results.items(), (
        f"a reader saw a record that is not in the log; {context}"
    )
    assert len(seen) > KILLS, context


def kill_one(kill: str, pipeline: Pipeline, broker: Broker, dice: random.Random) -> None:
    """Wait for some steps in most cases, then kill; sometimes worker and broker together."""
    if dice.random() < 0.85:
        pipeline.await_steps(dice.randint(1, 16), PATIENCE_S)
    worker = dice.choice(pipeline.workers)
    if kill == "worker":
        worker.kill()
        worker.start()
    else:
        broker.kill()
        together = dice.random() < 0.2
        if together:
            worker.kill()
        broker.start(60)
        if together:
            worker.start()


def await_the_end(pipeline: Pipeline, bootstrap: str) -> None:
    """Wait until the group has committed all of the input, and no transaction is open."""
    wanted = checker.ends(bootstrap, "in", PARTITIONS, "read_uncommitted")
    for _ in pipeline.await_each(PATIENCE_S):
        if checker.committed(bootstrap, "workers", "in", PARTITIONS) == wanted:
            break
    for _ in pipeline.await_each(PATIENCE_S):
        stable = checker.ends(bootstrap, "out", PARTITIONS, "read_committed")
        if stable == checker.ends(bootstrap, "out", PARTITIONS, "read_uncommitted"):
            break
