"""The broker dies at every write of a transaction: it is afterwards whole or absent."""

from __future__ import annotations

import random
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.conftest import BrokerFactory
from tests.crash.transactions import checker
from tests.crash.transactions.conftest import SETTINGS, make_topics
from tests.crash.transactions.implicit import ImplicitProducer
from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tests.support.librdkafka import ready_for_id
from tests.support.processes import poll_until

pytestmark = [pytest.mark.crash, pytest.mark.separate]

DYING = (sys.executable, "-m", "tests.crash.transactions.dying_serve")
ROOT = Path(__file__).parents[3]
PARTITIONS = 2
MOST_STEPS = 60
TIMEOUT_S = 60


class Attempt(ABC):
    """One transaction: a producer that starts, a record for each partition, an offset, a commit."""

    def __init__(self, number: int) -> None:
        self.outcome = ""
        """``committed``, ``aborted`` or the error that leaves it open which of both it is."""
        self._number = number
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def done(self) -> bool:
        """Return whether there is an outcome."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Wait for the outcome and close the clients."""
        self._thread.join(TIMEOUT_S)
        assert self.done(), "the client hangs"

    @abstractmethod
    def _run(self) -> None:
        """Run the transaction in this thread and set the outcome."""


class WithLibrdkafka(Attempt):
    """Uses the older protocol: each partition is added by a request."""

    def __init__(self, bootstrap: str, number: int, may_return: threading.Event) -> None:
        del may_return  # librdkafka does not ask; it is slow enough to be late most of the time
        self._group = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"group-{number}", "log_level": 0}
        )
        self._producer = make_producer(bootstrap)
        super().__init__(number)

    def close(self) -> None:
        super().close()
        self._group.close()

    def _run(self) -> None:
        try:
            ready_for_id(self._producer).init_transactions(TIMEOUT_S)
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
            [TopicPartition("in", 0, 1)],
            self._group.consumer_group_metadata(),
            TIMEOUT_S,
        )
        self._producer.commit_transaction(TIMEOUT_S)


class Implicit(Attempt):
    """Uses the newer protocol (KIP-890): a write adds its partition to the transaction."""

    def __init__(self, bootstrap: str, number: int, may_return: threading.Event) -> None:
        self._producer = ImplicitProducer(bootstrap, "t", may_return)
        super().__init__(number)

    def close(self) -> None:
        super().close()
        self._producer.close()

    def _run(self) -> None:
        try:
            self._producer.init()
            for partition in range(PARTITIONS):
                self._producer.send("out", partition, b"%d" % self._number)
            self._producer.commit_offset(f"group-{self._number}", "in", 1)
            self._producer.end(commit=True)
            self.outcome = "committed"
        except BaseException as error:
            self.outcome = repr(error)


def make_producer(bootstrap: str) -> Producer:
    """Return a producer. All of them have the same transactional id."""
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


@pytest.mark.parametrize(
    ("protocol", "client"),
    [
        (WithLibrdkafka, "continues"),
        (WithLibrdkafka, "is replaced"),
        (Implicit, "continues"),
        (Implicit, "is replaced"),
    ],
)
def test_a_transaction_is_whole_or_absent_wherever_the_broker_dies(
    start_broker: BrokerFactory,
    tmp_path: Path,
    protocol: Callable[[str, int, threading.Event], Attempt],
    client: str,
) -> None:
    step = tmp_path / "step"
    dice = random.Random(seed := effort.chosen_seed(9))
    env = {"CRASH_STEP": str(step), "PYTHONPATH": str(ROOT)}
    broker = start_broker(command=DYING, env=env, settings=SETTINGS)
    make_topics(broker.bootstrap, PARTITIONS, "in", "out")
    # A client that is to be replaced stays away until its successor has been let in.
    may_return = threading.Event()
    may_return.set()
    # The first transaction of all finds everything new; the steps are counted with a later one.
    protocol(broker.bootstrap, 0, may_return).close()
    attempts: list[Attempt] = []
    hits: list[str] = []
    died = True
    while died:
        number = len(attempts)
        assert number < MOST_STEPS, hits
        how = dice.choice(["before", "half"])
        step.write_text(f"{number} {how}")
        if client == "is replaced":
            may_return.clear()
        attempt = protocol(broker.bootstrap, number + 1, may_return)
        attempts.append(attempt)
        died = wait_for_death(broker, attempt)
        if died:
            step.unlink()
            hits.append(f"{step.with_suffix('.hit').read_text()} {how}")
            broker.start()
            if client == "is replaced":
                ready_for_id(make_producer(broker.bootstrap)).init_transactions(TIMEOUT_S)
        may_return.set()
        attempt.close()
    outcomes = [attempt.outcome for attempt in attempts]
    context = f"seed {seed}, {hits}, {outcomes}\n{broker.log()}"
    print(context)
    if client == "continues":
        assert set(outcomes) <= {"committed", "aborted"}, context
    assert outcomes[-1] == "committed", context
    # Journal, records, markers, offsets: if one of them were not tried, this would prove little.
    logs = Counter(hit.split(" ")[0] for hit in hits)
    assert logs["__transaction_state-0"] >= 3, context
    assert logs["__consumer_offsets-0"] >= 2, context
    assert logs["out-0"] >= 2, context
    assert logs["out-1"] >= 2, context
    # What is open now stays open: the last transaction went through.
    ends = checker.ends(broker.bootstrap, "out", PARTITIONS, "read_uncommitted")
    assert checker.ends(broker.bootstrap, "out", PARTITIONS, "read_committed") == ends, context
    found = Counter(
        (int(value), partition)
        for (partition, _), value in checker.read(broker.bootstrap, "out", PARTITIONS).items()
    )
    seen = []
    for number, outcome in enumerate(outcomes, 1):
        offset = checker.committed(broker.bootstrap, f"group-{number}", "in", PARTITIONS)[0]
        parts = [*(found[number, p] for p in range(PARTITIONS)), offset]
        whole, absent = [1] * len(parts), [0] * len(parts)
        allowed = {"committed": [whole], "aborted": [absent]}.get(outcome, [whole, absent])
        assert parts in allowed, f"{number} ({outcome}): {parts}; {context}"
        seen.append(parts == whole)
    if client == "is replaced" and protocol is Implicit:
        assert set(seen) == {True, False}, context


def wait_for_death(broker: BrokerProcess, attempt: Attempt) -> bool:
    """Return whether the broker ended before the transaction did."""

    def either() -> bool:
        return attempt.done() or broker.process.exit_code is not None

    poll_until(either, TIMEOUT_S, "the broker dies or the transaction ends")
    return broker.process.exit_code is not None
