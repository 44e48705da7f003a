"""A bank: accounts, and transfers as a process manager. The application of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tidemill.eventstore.app import (
    Cancel,
    Codec,
    ProcessWorker,
    Refused,
    Repository,
    Rows,
    Send,
    Timeout,
)
from tidemill.eventstore.events import Events, StoredEvent

events = Codec()


class RefusedError(Exception):
    """The account does not allow it."""


@events.event()
@dataclass(frozen=True)
class Opened:
    owner: str


@events.event()
@dataclass(frozen=True)
class Deposited:
    cents: int


@events.event()
@dataclass(frozen=True)
class Withdrawn:
    cents: int


@events.event()
@dataclass(frozen=True)
class Closed:
    pass


@dataclass
class Account:
    """An account with its balance."""

    owner: str = ""
    cents: int = 0
    is_open: bool = False
    history: list[int] = field(default_factory=list)

    def open(self, owner: str) -> Opened | None:
        return None if self.is_open else Opened(owner)

    def deposit(self, cents: int) -> Deposited:
        self._check_open()
        return Deposited(cents)

    def withdraw(self, cents: int) -> list[Withdrawn]:
        self._check_open()
        if cents > self.cents:
            raise RefusedError(f"only {self.cents} cents")
        return [Withdrawn(cents)]

    def close(self) -> Closed:
        return Closed()

    def _check_open(self) -> None:
        if not self.is_open:
            raise RefusedError("the account is not open")

    def apply_opened(self, event: Opened) -> None:
        self.owner, self.is_open = event.owner, True

    def apply_moved(self, event: Deposited | Withdrawn) -> None:
        cents = event.cents if isinstance(event, Deposited) else -event.cents
        self.cents += cents
        self.history.append(cents)

    def apply_closed(self, event: Closed) -> None:
        self.is_open = False


@events.event()
@dataclass(frozen=True)
class TransferRequested:
    source: str
    target: str
    cents: int


@events.event()
@dataclass(frozen=True)
class TransferDebited:
    pass


@events.event()
@dataclass(frozen=True)
class TransferReturning:
    pass


@events.event()
@dataclass(frozen=True)
class TransferEnded:
    ok: bool
    reason: str = ""


@events.event()
@dataclass(frozen=True)
class TransferExpired:
    pass


@dataclass
class Transfer:
    """Takes money from one account and brings it to another, or back."""

    source: str = ""
    target: str = ""
    cents: int = 0
    stage: str = "new"

    def request(self, source: str, target: str, cents: int) -> TransferRequested:
        return TransferRequested(source, target, cents)

    def on_requested(self, event: TransferRequested) -> Iterator[object]:
        yield Timeout(TransferExpired(), after=timedelta(minutes=1))
        yield Send(Account.withdraw, event.source, cents=event.cents)

    def on_withdrawn(self, event: Withdrawn) -> Iterator[object]:
        if self.stage == "requested":
            yield TransferDebited()
            yield Send(Account.deposit, self.target, cents=self.cents)

    def on_deposited(self, event: Deposited) -> Iterator[object]:
        yield Cancel(TransferExpired)
        if self.stage == "debited":
            yield TransferEnded(ok=True)
        elif self.stage == "returning":
            yield TransferEnded(ok=False, reason="returned")

    def on_refused(self, event: Refused) -> Iterator[object]:
        if event.command == "withdraw":
            yield Cancel(TransferExpired)
            yield TransferEnded(ok=False, reason=event.reason)
        elif self.stage == "debited":
            yield TransferReturning()
            yield Send(Account.deposit, self.source, cents=self.cents)

    def on_expired(self, event: TransferExpired) -> None:
        pass

    def apply_requested(self, event: TransferRequested) -> None:
        self.source, self.target, self.cents = event.source, event.target, event.cents
        self.stage = "requested"

    def apply_debited(self, event: TransferDebited) -> None:
        self.stage = "debited"

    def apply_returning(self, event: TransferReturning) -> None:
        self.stage = "returning"

    def apply_ended(self, event: TransferEnded) -> None:
        self.stage = "done" if event.ok else "failed"

    def apply_expired(self, event: TransferExpired) -> None:
        self.stage = "expired"


class Balances:
    """The balance of each account, and how many events made it."""

    name = "balances"
    version = 1
    tables = {"balance": "account TEXT PRIMARY KEY, cents BIGINT NOT NULL, moves BIGINT NOT NULL"}

    def on_moved(self, event: Deposited | Withdrawn, stored: StoredEvent, db: Rows) -> None:
        cents = event.cents if isinstance(event, Deposited) else -event.cents
        db.execute(
            "INSERT INTO {balance} VALUES (?, ?, 1) ON CONFLICT (account) DO UPDATE"
            " SET cents = {balance}.cents + excluded.cents, moves = {balance}.moves + 1",
            (stored.stream, cents),
        )


@dataclass
class Bank:
    """The repositories over one store."""

    store: Events
    accounts: Repository[Account]
    transfers: Repository[Transfer]

    @classmethod
    def over(cls, store: Events, **options: Any) -> Bank:
        return cls(
            store,
            Repository(store, events, Account, **options),
            Repository(store, events, Transfer),
        )

    def worker(self, **options: Any) -> ProcessWorker:
        options = {"refusals": (RefusedError,), **options}
        return ProcessWorker(self.transfers, [self.accounts], **options)

    def fund(self, account: str, cents: int) -> None:
        self.accounts.execute(account, lambda it: it.open(f"owner of {account}"))
        if cents:
            self.accounts.execute(account, lambda it: it.deposit(cents))

    def balance(self, account: str) -> int:
        return self.accounts.load(account).state.cents
