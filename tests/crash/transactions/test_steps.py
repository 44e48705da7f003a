"""The broker dies at every write of a transaction: it is afterwards whole or absent."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.conftest import BrokerFactory
from tests.crash.transactions import checker
from tests.crash.transactions.conftest import SETTINGS, make_topics
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

DYING = (sys.executable, "-m", "tests.crash.transactions.dying_serve")
ROOT = Path(__file__).parents[3]
PARTITIONS = 2
MOST_STEPS = 60
TIMEOUT_S = 60

Found = tuple[dict[int, int], int]
"""How often a transaction's record stands in each partition, and the group's offset."""


class Attempt:
    """One transaction: a producer that starts, a record for each partition, an offset, a commit."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.outcome = ""
        """``committed``, ``aborted`` or the error that leaves it open which of both it is."""
        self._number = number
        self._group = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
        self._producer = make_producer(bootstrap)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def done(self) -> bool:
        """Is there an outcome?"""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Let the clients go."""
        self._thread.join(TIMEOUT_S)
        assert self.done(), "the client hangs"
        self._group.close()

    def _run(self) -> None:
        try:
            self._producer.init_transactions(TIMEOUT_S)
            self._producer.begin_transaction()
            try:
                self._transact()
                self.outcome = "committed"
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self._producer.abort_transaction(TIMEOUT_S)
                self.outcome = "aborted"
        except BaseException as error:
            self.outcome = repr(error)

    def _transact(self) -> None:
        for partition in range(PARTITIONS):
            self._producer.produce("out", b"%d" % self._number, partition=partition)
            self._producer.flush(TIMEOUT_S)
        self._producer.send_offsets_to_transaction(
            [TopicPartition("in", 0, self._number + 1)],
            self._group.consumer_group_metadata(),
            TIMEOUT_S,
        )
        self._producer.commit_transaction(TIMEOUT_S)


def make_producer(bootstrap: str) -> Producer:
    """All of them have one transactional id."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "t",
            "metadata.recovery.strategy": "none",  # as in clients.Confluent
            "linger.ms": 0,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }
    )


@pytest.mark.parametrize("client", ["goes on", "is replaced"])
def test_a_transaction_is_whole_or_absent_wherever_the_broker_dies(
    start_broker: BrokerFactory, tmp_path: Path, client: str
) -> None:
    step = tmp_path / "step"
    dice = random.Random(seed := random.SystemRandom().randrange(1 << 32))
    env = {"CRASH_STEP": str(step), "PYTHONPATH": str(ROOT)}
    broker = start_broker(command=DYING, env=env, settings=SETTINGS)
    make_topics(broker.bootstrap, PARTITIONS, "in", "out")
    # The first transaction of all finds everything new; the steps are counted with a later one.
    Attempt(broker.bootstrap, 0).close()
    previous, outcomes, hits = 1, [], []
    for number in range(MOST_STEPS):
        how = dice.choice(["before", "half"])
        step.write_text(f"{number} {how}")
        attempt = Attempt(broker.bootstrap, number + 1)
        died = wait_for_death(broker, attempt)
        if died:
            step.unlink()
            hits.append(step.with_suffix(".hit").read_text())
            broker.start()
            if client == "is replaced":
                make_producer(broker.bootstrap).init_transactions(TIMEOUT_S)
        attempt.close()
        outcomes.append(attempt.outcome)
        context = f"seed {seed}, {how} write {number} of {hits}, {outcomes}\n{broker.log()}"
        found = look(broker, number + 1)
        whole: Found = (dict.fromkeys(range(PARTITIONS), 1), number + 2)
        absent: Found = ({}, previous)
        if attempt.outcome == "committed":
            assert found == whole, context
        elif attempt.outcome == "aborted":
            assert found == absent, context
        else:
            assert found in (whole, absent), context
        if client == "goes on":
            assert attempt.outcome in ("committed", "aborted"), context
        if not died:
            break
        previous = found[1]
    assert not died, f"{MOST_STEPS} writes are not enough"
    assert outcomes[-1] == "committed"
    # Journal, markers, offsets: if a write of one of them were not tried, this would prove little.
    logs = Counter(hits)
    print(f"seed {seed}: {hits}, {outcomes}")
    assert logs["__transaction_state-0"] >= 3
    assert logs["__consumer_offsets-0"] >= 2
    assert logs["out-0"] >= 2
    assert logs["out-1"] >= 2


def wait_for_death(broker: BrokerProcess, attempt: Attempt) -> bool:
    """Whether the broker died before the transaction was through."""

    def either() -> bool:
        return attempt.done() or broker.process.exit_code is not None

    poll_until(either, TIMEOUT_S, "the broker dies or the transaction ends")
    return broker.process.exit_code is not None


def look(broker: BrokerProcess, number: int) -> Found:
    """What there is of a transaction for those who read what is committed.

    Raises:
        TimeoutError: some transaction stays open.
    """

    def settled() -> bool:
        stable, end = (
            checker.ends(broker.bootstrap, "out", PARTITIONS, isolation)
            for isolation in ("read_committed", "read_uncommitted")
        )
        return stable == end

    offset = checker.committed(broker.bootstrap, "g", "in", PARTITIONS)[0]
    poll_until(settled, 30, "no transaction is open")
    found = checker.read(broker.bootstrap, "out", PARTITIONS)
    return dict(Counter(p for (p, _), value in found.items() if value == b"%d" % number)), offset
