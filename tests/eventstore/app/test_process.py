"""Process managers: decisions, commands and time-outs happen once, whenever a worker dies."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tests.eventstore.app.bank import (
    Account,
    Bank,
    Deposited,
    Transfer,
    TransferDebited,
    TransferEnded,
    TransferExpired,
    TransferRequested,
    Withdrawn,
)
from tests.eventstore.app.bank import events as codec
from tidemill.eventstore.app import Context, ProcessWorker, Repository, Send, Timeout
from tidemill.eventstore.app.errors import (
    CommandRefusedError,
    DeclarationError,
    ProcessFailedError,
)
from tidemill.eventstore.app.process import DECIDED, DECISIONS, REFUSED, UNCHANGED
from tidemill.eventstore.app.testing import given
from tidemill.eventstore.errors import OutcomeUnknownError
from tidemill.eventstore.events import Appended, NewEvent, Query
from tidemill.eventstore.memory_store import MemoryStore


class KilledError(BaseException):
    """The process ends here."""


class Mortal(MemoryStore):
    """A store whose user dies before or behind some append."""

    lives: int | None = None
    dies_behind = False

    def append(self, stream: str, events: Sequence[NewEvent], **options: Any) -> Appended:
        if self.lives is not None:
            self.lives -= 1
            if self.lives < 0 and not self.dies_behind:
                raise KilledError
        done = super().append(stream, events, **options)
        if self.lives is not None and self.lives < 0:
            raise KilledError
        return done


def request(bank: Bank, id_: str, source: str, target: str, cents: int) -> None:
    bank.transfers.execute(id_, lambda it: it.request(source, target, cents), command_id="request")


def work(worker: ProcessWorker) -> None:
    """Work until nothing is left to do."""
    while worker.step():
        pass


def test_a_transfer_takes_and_brings_the_money() -> None:
    bank = Bank.over(MemoryStore())
    bank.fund("ada", 100)
    bank.fund("eve", 0)
    request(bank, "t1", "ada", "eve", 70)
    work(bank.worker())
    assert (bank.balance("ada"), bank.balance("eve")) == (30, 70)
    assert bank.transfers.load("t1").state.stage == "done"


def test_a_refused_command_is_an_event_of_the_process() -> None:
    bank = Bank.over(MemoryStore())
    bank.fund("ada", 100)
    request(bank, "poor", "ada", "ada", 101)
    request(bank, "lost", "ada", "not open", 60)
    work(bank.worker())
    assert bank.balance("ada") == 100
    assert bank.transfers.load("poor").state.stage == "failed"
    assert bank.transfers.load("lost").state.stage == "failed"
    assert bank.accounts.load("ada").state.history == [100, -60, 60]


@pytest.mark.parametrize("dies_behind", [False, True])
def test_a_worker_that_dies_at_any_append_leaves_the_money_right(dies_behind: bool) -> None:
    lives = 0
    while True:
        store = Mortal()
        bank = Bank.over(store)
        bank.fund("ada", 100)
        bank.fund("eve", 0)
        request(bank, "t1", "ada", "eve", 70)
        request(bank, "t2", "ada", "eve", 70)
        request(bank, "t3", "ada", "gone", 5)
        store.lives, store.dies_behind = lives, dies_behind
        died = False
        try:
            work(bank.worker(checkpoint_every=2))
        except KilledError:
            died = True
        store.lives = None
        work(bank.worker(checkpoint_every=2))
        assert (bank.balance("ada"), bank.balance("eve")) == (30, 70), lives
        assert bank.transfers.load("t1").state.stage == "done"
        assert bank.transfers.load("t2").state.stage == "failed"
        assert bank.accounts.load("ada").state.history == [100, -70, -5, 5]
        if not died:
            break
        lives += 1
    assert lives > 15


def test_two_workers_at_the_same_time_do_everything_once() -> None:
    bank = Bank.over(MemoryStore())
    names = [f"a{number}" for number in range(5)]
    for name in names:
        bank.fund(name, 100)
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            bank.worker(checkpoint_every=7).run(stop, wait_s=0.01)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=run) for _ in range(3)]
    for each in workers:
        each.start()
    chance = random.Random(3)
    for number in range(40):
        source, target = chance.sample(names, 2)
        request(bank, f"t{number}", source, target, chance.randint(1, 60))
    queries = (Query(types=codec.names([TransferEnded])),)
    for ended, _ in enumerate(bank.store.follow(queries=queries, wait_s=20), 1):
        if ended == 40:
            break
    stop.set()
    for each in workers:
        each.join()
    assert failures == []
    assert sum(bank.balance(name) for name in names) == 500
    stages = [bank.transfers.load(f"t{number}").state.stage for number in range(40)]
    assert set(stages) <= {"done", "failed"}
    moved = sum(len(bank.accounts.load(name).state.history) - 1 for name in names)
    assert moved == 2 * stages.count("done")


# --- time-outs -----------------------------------------------------------------------------------


@dataclass
class Reminder:
    """Waits for a deposit; a time-out closes the account."""

    stage: str = "new"

    def request(self, source: str) -> TransferRequested:
        return TransferRequested(source, source, 0)

    def on_requested(self, event: TransferRequested) -> list[object]:
        return [Timeout(TransferExpired(), after=timedelta(minutes=5))]

    def on_expired(self, event: TransferExpired) -> Send:
        return Send(Account.deposit, "ada", cents=1)

    def apply_requested(self, event: TransferRequested) -> None:
        self.stage = "waiting"

    def apply_expired(self, event: TransferExpired) -> None:
        self.stage = "expired"


def test_a_time_out_happens_once_and_survives_restarts() -> None:
    store, now = MemoryStore(lambda: 1_000_000), 1_000_000
    bank = Bank.over(store)
    bank.fund("ada", 0)
    reminders = Repository(store, codec, Reminder)
    reminders.execute("1", lambda it: it.request("ada"))

    def worker() -> ProcessWorker:
        return ProcessWorker(reminders, [bank.accounts], now_ms=lambda: now, checkpoint_every=1)

    first = worker()
    work(first)
    assert [each.timeout.due_ms for each in first.open_timeouts] == [1_300_000]
    second = worker()
    now = 1_299_999
    work(second)
    assert reminders.load("1").state.stage == "waiting"
    now = 1_300_000
    work(second)
    work(first)
    work(worker())
    assert reminders.load("1").state.stage == "expired"
    assert bank.balance("ada") == 1
    assert worker().open_timeouts == []


def test_a_time_out_whose_outcome_is_not_known_is_due_again() -> None:
    """As while the broker is restarted: the worker goes on, and must not have lost it."""

    class Silent(MemoryStore):
        is_silent = False

        def append(self, stream: str, events: Sequence[NewEvent], **options: Any) -> Appended:
            if self.is_silent:
                raise OutcomeUnknownError("no answer")
            return super().append(stream, events, **options)

    store, now = Silent(lambda: 0), 0
    bank = Bank.over(store)
    bank.fund("ada", 0)
    reminders = Repository(store, codec, Reminder)
    reminders.execute("1", lambda it: it.request("ada"))
    worker = ProcessWorker(reminders, [bank.accounts], now_ms=lambda: now)
    work(worker)
    now, store.is_silent = 300_000, True
    with pytest.raises(OutcomeUnknownError):
        worker.step()
    store.is_silent = False
    work(worker)
    assert reminders.load("1").state.stage == "expired"


def test_a_cancelled_time_out_does_not_happen_not_even_in_a_worker_that_is_behind() -> None:
    store, now = MemoryStore(lambda: 0), 0
    bank = Bank.over(store)
    bank.fund("ada", 10)
    bank.fund("eve", 0)
    request(bank, "t1", "ada", "eve", 5)
    behind = bank.worker(now_ms=lambda: now)
    while not behind.open_timeouts:
        assert behind.step(0, lambda: True)
    work(bank.worker(now_ms=lambda: now))
    now = 10**9
    work(behind)
    assert bank.transfers.load("t1").state.stage == "done"
    assert not list(store.read_all(queries=[Query(types=codec.names([TransferExpired]))]))


# --- what is stored ------------------------------------------------------------------------------


def test_a_decision_stores_its_commands_and_says_who_caused_it() -> None:
    store = MemoryStore()
    bank = Bank.over(store)
    bank.fund("ada", 10)
    bank.fund("eve", 0)
    request(bank, "t1", "ada", "eve", 5)
    work(bank.worker())
    requested, mark, *_ = store.read("transfer-t1")
    decision = DECISIONS.validate_json(mark.data)
    assert (decision.cause, decision.position) == (str(requested.id), requested.position)
    (command,) = decision.commands
    assert (command.method, command.to, command.arguments) == ("withdraw", "ada", {"cents": 5})
    (withdrawn,) = store.read_all(queries=[Query(types=codec.names([Withdrawn]))])
    context = Context.decode(withdrawn.metadata)
    assert (context.actor, context.process) == ("process:transfer", "transfer-t1")
    assert (context.causation, context.correlation) == (str(mark.id), str(requested.id))


def test_a_refused_command_can_not_be_repeated_under_its_id() -> None:
    store = MemoryStore()
    bank = Bank.over(store)
    bank.fund("ada", 0)
    request(bank, "t1", "ada", "ada", 5)
    work(bank.worker())
    (refused,) = store.read_all(queries=[Query(types=frozenset({REFUSED}))])
    (mark, *_) = store.read_all(queries=[Query(types=frozenset({DECIDED}))])
    bank.accounts.execute("ada", lambda it: it.deposit(100))
    with pytest.raises(CommandRefusedError, match="only 0 cents"):
        bank.accounts.execute("ada", lambda it: it.withdraw(5), command_id=f"{mark.id}:0")
    assert refused.stream == "transfer-t1"


def test_a_command_that_changes_nothing_is_noted_and_not_run_again() -> None:
    store = MemoryStore()
    bank = Bank.over(store)
    bank.fund("ada", 0)
    calls: list[int] = []

    @dataclass
    class Silent:
        def touch(self) -> None:
            calls.append(1)

    @dataclass
    class Toucher:
        def on_deposited(self, event: Deposited) -> Send:
            return Send(Silent.touch, "1")

    silent, touchers = Repository(store, codec, Silent), Repository(store, codec, Toucher)
    bank.accounts.execute("ada", lambda it: it.deposit(3))
    for _ in range(2):
        work(ProcessWorker(touchers, [silent], starts={Deposited: lambda event: "x"}))
    assert calls == [1]
    assert list(store.read_all(queries=[Query(types=frozenset({UNCHANGED}))]))


def test_an_error_stops_the_worker_before_the_event() -> None:
    bank = Bank.over(MemoryStore())
    request(bank, "t1", "ada", "eve", 5)
    strict = bank.worker(refusals=())
    for _ in range(2):
        with pytest.raises(ProcessFailedError, match="not open"):
            work(strict)
    bank.fund("ada", 100)
    bank.fund("eve", 0)
    work(strict)
    assert bank.balance("eve") == 5


def test_a_command_must_be_a_method_of_a_known_aggregate_with_its_arguments() -> None:
    bank = Bank.over(MemoryStore())
    sent: list[object] = [Send(Reminder.request, "1"), Send(Account.deposit, "1"), 17]

    @dataclass
    class Wrong:
        def on_deposited(self, event: Deposited) -> object:
            return sent[0]

    wrong = Repository(bank.store, codec, Wrong)
    bank.fund("ada", 1)
    for _ in range(3):
        worker = ProcessWorker(wrong, [bank.accounts], starts={Deposited: lambda _: "1"})
        with pytest.raises(ProcessFailedError) as raised:
            work(worker)
        assert isinstance(raised.value.__cause__, DeclarationError)
        sent.pop(0)
    with pytest.raises(DeclarationError, match="not made with a class"):
        ProcessWorker(wrong, [Repository(bank.store, codec, lambda: Account(), category="x")])


def test_the_aggregate_of_a_process_is_tested_like_any_other() -> None:
    order = TransferRequested("a", "b", 5)
    (
        given(Transfer, order, codec=codec)
        .when(Transfer.on_requested, order)
        .then(
            Timeout(TransferExpired(), after=timedelta(minutes=1)),
            Send(Account.withdraw, "a", cents=5),
        )
        .when(Transfer.on_withdrawn, Withdrawn(5))
        .then(TransferDebited(), Send(Account.deposit, "b", cents=5))
        .is_now(stage="debited")
    )
    with pytest.raises(AssertionError, match="cents=6"):
        given(Transfer).when(Transfer.on_requested, order).then(
            Send(Account.withdraw, "a", cents=6)
        )
