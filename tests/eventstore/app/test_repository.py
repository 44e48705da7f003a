"""Aggregates: loading, commands, races, snapshots, time travel."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.eventstore.app.bank import Account, Bank, Deposited, Opened, RefusedError, Withdrawn
from tests.eventstore.app.bank import events as codec
from tidemill.eventstore.app import (
    AsyncRepository,
    Change,
    Context,
    Repository,
    Retries,
    SnapshotFile,
    SnapshotPolicy,
    audit,
    diff,
)
from tidemill.eventstore.app.errors import (
    DeclarationError,
    MissingHandlerError,
    TruncatedStreamError,
)
from tidemill.eventstore.app.testing import given
from tidemill.eventstore.errors import (
    ConditionFailedError,
    OutcomeUnknownError,
    VersionConflictError,
)
from tidemill.eventstore.events import Appended, Condition, NewEvent, Query
from tidemill.eventstore.memory_store import MemoryStore


class Clock:
    """Milliseconds since 1970, one more with each call, from a day on."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def go_to(self, year: int, month: int) -> None:
        self.now_ms = int(datetime(year, month, 15, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[MemoryStore]:
    with MemoryStore(clock) as store:
        yield store


def test_a_command_stores_what_it_decides(store: MemoryStore) -> None:
    accounts = Bank.over(store).accounts
    done = accounts.execute("ada", lambda account: account.open("Ada"))
    assert (done.events, done.version, done.position) == ((Opened("Ada"),), 1, 1)
    done = accounts.execute("ada", lambda account: [account.deposit(5), account.deposit(6)])
    assert (done.version, done.state.cents, done.repeated) == (3, 11, False)
    with pytest.raises(RefusedError):
        accounts.execute("ada", lambda account: account.withdraw(12))
    nothing = accounts.execute("ada", lambda account: account.open("Eve"))
    assert (nothing.events, nothing.version) == ((), 3)
    assert accounts.load("ada").state == done.state
    assert [each.stream for each in store.read("account-ada")] == ["account-ada"] * 3


def test_an_aggregate_without_events_is_new(store: MemoryStore) -> None:
    loaded = Bank.over(store).accounts.load("new")
    assert (loaded.state, loaded.version, loaded.position) == (Account(), 0, 0)


def test_a_faster_writer_makes_a_command_decide_again(store: MemoryStore) -> None:
    bank = Bank.over(store)
    bank.fund("ada", 100)
    seen: list[int] = []

    def withdraw(account: Account) -> Any:
        seen.append(account.cents)
        if len(seen) == 1:
            bank.accounts.execute("ada", lambda account: account.withdraw(60))
        return account.withdraw(60)

    with pytest.raises(RefusedError, match="only 40"):
        bank.accounts.execute("ada", withdraw)
    assert seen == [100, 40]


def test_threads_on_one_stream_lose_nothing(store: MemoryStore) -> None:
    bank = Bank.over(store)
    bank.fund("ada", 0)
    start = threading.Barrier(8)

    def deposit(_: int) -> None:
        start.wait()
        for _ in range(20):
            bank.accounts.execute("ada", lambda account: account.deposit(1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(deposit, range(8)))
    assert bank.balance("ada") == 160


def test_many_threads_on_one_aggregate_decide_once_each(store: MemoryStore) -> None:
    """They would decide again and again, and some would give up, if they did not take turns."""
    bank = Bank.over(store, retries=Retries(attempts=1))
    bank.fund("ada", 0)
    decisions: list[int] = []

    def deposit(account: Account) -> Deposited:
        decisions.append(account.cents)
        time.sleep(0.0005)  # others want to decide meanwhile
        return account.deposit(1)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda _: bank.accounts.execute("ada", deposit), range(200)))
    assert decisions == list(range(200))
    assert len(bank.accounts._turns) == 0


def test_commands_that_execute_each_other_do_not_wait_for_ever(store: MemoryStore) -> None:
    bank = Bank.over(store)
    for name in ("ada", "eve"):
        bank.fund(name, 0)
    both = threading.Barrier(2)

    def give(name: str, other: str) -> None:
        def command(account: Account) -> Deposited:
            if account.cents == 0:
                with contextlib.suppress(threading.BrokenBarrierError):
                    both.wait(5)
                bank.accounts.execute(other, lambda it: it.deposit(1))
            return account.deposit(1)

        bank.accounts.execute(name, command)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(give, ("ada", "eve"), ("eve", "ada")))
    assert bank.balance("ada") == bank.balance("eve") == 2


def test_the_last_attempt_raises_the_conflict(store: MemoryStore) -> None:
    bank = Bank.over(store, retries=Retries(attempts=3, first_s=0))
    bank.fund("ada", 0)
    calls = 0

    def never_first(account: Account) -> Deposited:
        nonlocal calls
        calls += 1
        codec_event = codec.encode(Deposited(1))
        store.append("account-ada", [codec_event])
        return account.deposit(1)

    with pytest.raises(VersionConflictError):
        bank.accounts.execute("ada", never_first)
    assert calls == 3


def test_a_loaded_aggregate_is_saved_unless_another_writer_was_faster(store: MemoryStore) -> None:
    accounts = Bank.over(store).accounts
    loaded, old = accounts.load("ada"), accounts.load("ada")
    done = accounts.save(loaded, [Opened("Ada"), Deposited(3)], context=Context(actor="user:1"))
    assert (done.version, done.state.cents) == (2, 3)
    assert accounts.save(done, None).version == 2
    with pytest.raises(VersionConflictError):
        accounts.save(old, Opened("Eve"))


# --- commands with an id -------------------------------------------------------------------------


def test_a_command_with_an_id_is_done_once(store: MemoryStore) -> None:
    bank = Bank.over(store)
    bank.fund("ada", 100)
    first = bank.accounts.execute("ada", lambda account: account.withdraw(70), command_id="w1")
    again = bank.accounts.execute("ada", lambda account: account.withdraw(70), command_id="w1")
    assert (first.repeated, again.repeated) == (False, True)
    assert again.events == first.events == (Withdrawn(70),)
    assert bank.balance("ada") == 30
    bank.fund("eve", 100)
    other = bank.accounts.execute("eve", lambda account: account.withdraw(70), command_id="w1")
    assert not other.repeated


def test_threads_with_the_same_command_id_do_it_once(store: MemoryStore) -> None:
    bank = Bank.over(store)
    bank.fund("ada", 1000)
    start = threading.Barrier(8)

    def withdraw(_: int) -> bool:
        start.wait()
        id_ = uuid.UUID(int=7)
        return bank.accounts.execute("ada", lambda it: it.withdraw(10), command_id=id_).repeated

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(withdraw, range(8))) == [False] + [True] * 7
    assert bank.balance("ada") == 990


class Forgetful(MemoryStore):
    """A store that stores the next commits and does not answer."""

    unknown = 0

    def append(self, stream: str, events: Sequence[NewEvent], **options: Any) -> Appended:
        done = super().append(stream, events, **options)
        if self.unknown:
            self.unknown -= 1
            raise OutcomeUnknownError("no answer")
        return done


@pytest.mark.parametrize("command_id", ["w1", None])
def test_an_unknown_outcome_is_found_out_by_sending_the_same_ids(command_id: str | None) -> None:
    store = Forgetful()
    bank = Bank.over(store)
    bank.fund("ada", 100)
    store.unknown = 2
    done = bank.accounts.execute("ada", lambda it: it.withdraw(10), command_id=command_id)
    assert done.repeated
    assert bank.balance("ada") == 90
    store.unknown = 3
    with pytest.raises(OutcomeUnknownError):
        bank.accounts.execute("ada", lambda it: it.withdraw(5), command_id="w2")
    assert bank.accounts.execute("ada", lambda it: it.withdraw(5), command_id="w2").repeated
    assert bank.balance("ada") == 85


def test_a_command_that_fails_because_it_was_done_returns_its_outcome(store: MemoryStore) -> None:
    """The second click: what the first one did makes the second one impossible."""
    bank = Bank.over(store)
    bank.fund("ada", 100)

    def withdraw(account: Account) -> Any:
        if bank.balance("ada") == 100:
            bank.accounts.execute("ada", lambda it: it.withdraw(100), command_id="click")
            raise RefusedError("seen too late")
        return account.withdraw(100)

    assert bank.accounts.execute("ada", withdraw, command_id="click").repeated
    assert bank.balance("ada") == 0


async def test_coroutines_run_commands_at_the_same_time(store: MemoryStore) -> None:
    bank = Bank.over(store)
    accounts = AsyncRepository(bank.accounts)
    await accounts.execute("ada", lambda account: account.open("Ada"))
    deposit = [accounts.execute("ada", lambda account: account.deposit(1)) for _ in range(50)]
    await asyncio.gather(*deposit)
    loaded = await accounts.load("ada", fresh=True)
    assert (loaded.state.cents, loaded.version) == (50, 51)
    assert (await accounts.as_of("ada", version=11)).state.cents == 10
    assert (await accounts.save(loaded, Deposited(5))).state.cents == 55
    with pytest.raises(RefusedError):
        await accounts.execute("ada", lambda account: account.withdraw(99))
    accounts.close()


def test_a_condition_holds_between_aggregates(store: MemoryStore) -> None:
    bank = Bank.over(store)
    bank.fund("ada", 5)
    never = [Condition((Query(types=codec.names([Deposited])),), after=1)]
    with pytest.raises(ConditionFailedError):
        bank.accounts.execute("eve", lambda it: it.open("Eve"), conditions=never)
    never = [Condition((Query(types=codec.names([Deposited])),), after=store.position())]
    bank.accounts.execute("eve", lambda it: it.open("Eve"), conditions=never, command_id="1")


# --- snapshots -----------------------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts the events that were read from streams."""

    count = 0

    def read(self, stream: str, **options: Any) -> Iterator[Any]:
        for each in super().read(stream, **options):
            self.count += 1
            yield each


def test_a_snapshot_saves_the_replay(tmp_path: Path) -> None:
    store = Counting()
    file = SnapshotFile(tmp_path / "snapshots.db")
    bank = Bank.over(store, snapshots=SnapshotPolicy(Account, every=10, file=file))
    bank.fund("ada", 0)
    for _ in range(25):
        bank.accounts.execute("ada", lambda account: account.deposit(1))
    store.count = 0
    assert bank.accounts.load("ada").state.history == [1] * 25
    assert store.count < 10
    file.close()
    assert Bank.over(store).balance("ada") == 25


def test_a_snapshot_of_another_schema_version_is_ignored_and_replaced() -> None:
    store, file = MemoryStore(), SnapshotFile()
    bank = Bank.over(store, snapshots=SnapshotPolicy(Account, every=1, file=file))
    bank.fund("ada", 5)
    assert bank.balance("ada") == 5
    assert file.get("account-ada") is not None

    @dataclass
    class Renamed:
        total: int = 0

        def apply_any(self, event: Opened | Deposited) -> None:
            self.total += getattr(event, "cents", 0)

    policy: SnapshotPolicy[Renamed] = SnapshotPolicy(Renamed, every=1, schema=2, file=file)
    accounts = Repository(store, codec, Renamed, category="account", snapshots=policy)
    assert accounts.load("ada").state.total == 5
    found = file.get("account-ada")
    assert found is not None
    assert (found.schema, found.state) == (2, b'{"total":5}')


def test_a_snapshot_of_another_log_or_with_an_invalid_state_is_ignored() -> None:
    file = SnapshotFile()
    policy: SnapshotPolicy[Account] = SnapshotPolicy(Account, every=1, file=file)
    first = Bank.over(MemoryStore(), snapshots=policy)
    first.fund("ada", 500)
    first.balance("ada")
    second = Bank.over(MemoryStore(), snapshots=policy)
    assert second.balance("ada") == 0
    second.fund("ada", 7)
    assert second.balance("ada") == 7
    file._db.execute("UPDATE snapshot SET state = 'x'")
    assert second.balance("ada") == 7
    file.delete("account-ada")
    assert file.get("account-ada") is None
    assert second.balance("ada") == 7
    assert file.clear() == 1
    assert file.get("account-ada") is None


@pytest.mark.parametrize("moment", [{}, {"version": 1}, {"position": 1}])
def test_truncated_events_are_an_error_and_not_an_empty_aggregate(
    store: MemoryStore, moment: dict[str, int]
) -> None:
    bank = Bank.over(store)
    bank.fund("ada", 5)
    store.truncate({"account-ada": 2})
    with pytest.raises(TruncatedStreamError, match="no event 1 any more"):
        bank.accounts.as_of("ada", **moment)  # type: ignore[arg-type]
    assert bank.accounts.as_of("ada", version=0).version == 0


def test_a_snapshot_replaces_truncated_events(store: MemoryStore) -> None:
    bank = Bank.over(store, snapshots=SnapshotPolicy(Account, every=1))
    for _ in range(3):
        bank.fund("ada", 5)
    bank.balance("ada")
    store.truncate({"account-ada": 4})
    bank.accounts.execute("ada", lambda account: account.deposit(1))
    assert bank.balance("ada") == 16


# --- time travel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, 1, 2, 100])
def test_the_state_as_of_a_version_a_position_and_a_time(
    store: MemoryStore, clock: Clock, every: int
) -> None:
    options: dict[str, Any] = {"snapshots": SnapshotPolicy(Account, every=every)} if every else {}
    bank = Bank.over(store, **options)
    for month, cents in ((1, 10), (2, 20), (3, 30)):
        clock.go_to(2026, month)
        bank.fund("ada", cents)
        bank.fund("eve", 1)
        bank.balance("ada")
    accounts = bank.accounts
    assert [accounts.as_of("ada", version=v).state.cents for v in range(5)] == [0, 0, 10, 30, 60]
    found = accounts.as_of("ada", time=datetime(2026, 2, 28, tzinfo=UTC))
    assert (found.state.cents, found.version) == (30, 3)
    assert accounts.as_of("ada", time=datetime(2025, 1, 1, tzinfo=UTC)).version == 0
    assert accounts.as_of("ada", position=found.position).state == found.state
    assert accounts.as_of("ada", position=found.position - 1).state.cents == 10
    assert accounts.as_of("ada", version=10**9).state.cents == 60
    with pytest.raises(DeclarationError, match="time zone"):
        accounts.as_of("ada", time=datetime(2026, 1, 1))
    changed = diff(accounts.as_of("ada", version=1).state, accounts.as_of("ada", version=3).state)
    assert changed == {"cents": Change(0, 30), "history": Change([], [10, 20])}


def test_an_audit_says_who_when_why_and_what(store: MemoryStore, clock: Clock) -> None:
    bank = Bank.over(store)
    clock.go_to(2026, 5)
    who = Context(actor="clerk:3", reason="branch", correlation="case 1")
    bank.accounts.execute("ada", lambda it: it.open("Ada"), context=who)
    bank.accounts.execute("ada", lambda it: it.deposit(5), command_id="d1")
    first, second = audit(bank.accounts, "ada")
    assert (first.event, first.context) == (Opened("Ada"), who)
    assert first.at.strftime("%Y-%m-%d") == "2026-05-15"
    assert first.changes == {"owner": Change("", "Ada"), "is_open": Change(False, True)}
    assert second.context.command == "d1"
    assert second.changes == {"cents": Change(0, 5), "history": Change([], [5])}


# --- declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["", "x" * 1001, "a\nb", "a\x00"])
def test_an_invalid_id_is_refused(store: MemoryStore, wrong: str) -> None:
    with pytest.raises(DeclarationError):
        Bank.over(store).accounts.load(wrong)


def test_a_category_has_no_dash(store: MemoryStore) -> None:
    with pytest.raises(DeclarationError, match="category"):
        Repository(store, codec, Account, category="my-account")
    with pytest.raises(DeclarationError, match="category"):
        Repository(store, codec, lambda: Account(), category="")
    assert Repository(store, codec, Account).id_of("account-a-b") == "a-b"


def test_an_event_without_an_apply_method_is_an_error(store: MemoryStore) -> None:
    class Deaf:
        def apply_opened(self, event: Opened) -> None: ...

    deaf = Repository(store, codec, Deaf)
    deaf.save(deaf.load("1"), Opened("x"))
    store.append("deaf-1", [codec.encode(Deposited(1))])
    with pytest.raises(MissingHandlerError, match="Deaf has no method for Deposited"):
        deaf.load("1")


def test_immutable_aggregates_and_a_single_apply_method_work_too(store: MemoryStore) -> None:
    @dataclass(frozen=True)
    class Total:
        cents: int = 0

        def apply(self, event: object) -> Total:
            return Total(self.cents + getattr(event, "cents", 0))

    totals = Repository(store, codec, Total)
    totals.execute("1", lambda _: [Deposited(4), Deposited(5)])
    assert totals.load("1").state == Total(9)


def test_methods_that_take_the_same_event_or_none_are_an_error(store: MemoryStore) -> None:
    class Twice:
        def apply_a(self, event: Opened) -> None: ...
        def apply_b(self, event: Opened | Deposited) -> None: ...

    class Blank:
        def apply_a(self, event): ...  # type: ignore[no-untyped-def]

    for wrong in (Twice, Blank):
        with pytest.raises(DeclarationError):
            given(wrong, Opened("x"))


# --- the test kit --------------------------------------------------------------------------------


def test_given_when_then() -> None:
    (
        given(Account, Opened("ada"), Deposited(10), codec=codec)
        .when(Account.withdraw, 7)
        .then(Withdrawn(7))
        .is_now(cents=3)
        .when(Account.withdraw, cents=7)
        .raises(RefusedError, "only 3")
        .when(Account.open, "ada")
        .then()
    )


def test_given_when_then_notices_what_differs() -> None:
    with pytest.raises(AssertionError, match="expected"):
        given(Account, Opened("a")).when(Account.deposit, 7).then(Deposited(8))
    with pytest.raises(AssertionError, match="raised"):
        given(Account).when(Account.deposit, 7).then(Deposited(7))
    with pytest.raises(AssertionError, match="expected RefusedError"):
        given(Account, Opened("a")).when(Account.deposit, 7).raises(RefusedError)
    with pytest.raises(AssertionError, match="when"):
        given(Account).then()
    with pytest.raises(AssertionError, match="expected"):
        given(Account, Opened("a")).is_now(owner="b")
