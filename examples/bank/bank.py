"""A bank that keeps what happened: accounts, transfers, statements, an audit, a forgotten name.

    python examples/bank/bank.py

It starts a broker of its own and checks every figure that it prints. With -b it uses a broker that
runs, also of Apache Kafka.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import tidemill
from tidemill.eventstore.app import (
    Cancel,
    Codec,
    Context,
    ProcessWorker,
    ProjectionRunner,
    Refused,
    Repository,
    Send,
    Timeout,
    audit,
    diff,
)
from tidemill.eventstore.app.projections.sqlite import SQLite
from tidemill.eventstore.app.testing import given
from tidemill.eventstore.forgetting import (
    Keyring,
    Masters,
    Personal,
    SealedStore,
    personal_fields,
)
from tidemill.eventstore.store import Store

# --- what can happen -----------------------------------------------------------------------------
#
# An event is a plain class with a name that stays when the class is renamed. It says what happened,
# in the words of the bank, and it never changes.

events = Codec()


@events.event("account opened")
@dataclass(frozen=True)
class Opened:
    """The name of the holder is personal: it is sealed with a key of the customer."""

    customer: str
    holder: Annotated[str | None, Personal("customer")]


@events.event("money deposited")
@dataclass(frozen=True)
class Deposited:
    cents: int
    booked: date


@events.event("money withdrawn")
@dataclass(frozen=True)
class Withdrawn:
    cents: int
    booked: date


@events.event("transfer requested")
@dataclass(frozen=True)
class TransferRequested:
    source: str
    target: str
    cents: int
    booked: date


@events.event("transfer paid")
@dataclass(frozen=True)
class TransferPaid:
    """The money has left the source."""


@events.event("transfer returned")
@dataclass(frozen=True)
class TransferReturned:
    """The target did not take the money: it goes back."""


@events.event("transfer ended")
@dataclass(frozen=True)
class TransferEnded:
    outcome: str


@events.event("transfer late")
@dataclass(frozen=True)
class TransferLate:
    """A minute has passed, and the transfer has not ended."""


# --- accounts ------------------------------------------------------------------------------------
#
# An aggregate decides. Its commands return events and change nothing; its apply methods change it
# and decide nothing. That is all: nothing is inherited, so a test needs no store.


class RefusedError(Exception):
    """The bank says no."""


@dataclass
class Account:
    customer: str = ""
    holder: str = ""
    cents: int = 0

    def open(self, customer, holder):
        if self.customer:
            raise RefusedError("the account is open already")
        return Opened(customer, holder)

    def deposit(self, cents: int, booked: date):
        if not self.customer:
            raise RefusedError("there is no such account")
        return Deposited(cents, booked)

    def withdraw(self, cents: int, booked: date):
        if cents > self.cents:
            raise RefusedError(f"{euros(cents)} is more than the {euros(self.cents)} there are")
        return Withdrawn(cents, booked)

    def apply_opened(self, event: Opened):
        self.customer = event.customer
        self.holder = event.holder or "(forgotten)"

    def apply_deposited(self, event: Deposited):
        self.cents += event.cents

    def apply_withdrawn(self, event: Withdrawn):
        self.cents -= event.cents


def test_the_account_without_a_store():
    day = date(2026, 1, 7)
    (
        given(Account, Opened("c-1", "Ada"), Deposited(500, day), codec=events)
        .when(Account.withdraw, 200, day)
        .then(Withdrawn(200, day))
        .when(Account.withdraw, 301, day)
        .raises(RefusedError, "more than")
        .is_now(cents=300)
    )


# --- transfers -----------------------------------------------------------------------------------
#
# A transfer touches two accounts, and each account decides for itself. A process manager leads it:
# it reacts to events with commands. All reactions to one event are stored in one commit before any
# of them is done, so a worker can be killed at any moment, and each command still happens once.


@dataclass
class Transfer:
    order: TransferRequested | None = None
    stage: str = "new"

    def request(self, order):
        return order

    def on_requested(self, event: TransferRequested):
        yield Timeout(TransferLate(), after=timedelta(minutes=1))
        yield Send(Account.withdraw, event.source, cents=event.cents, booked=event.booked)

    def on_withdrawn(self, event: Withdrawn):
        yield TransferPaid()
        yield self.pay(self.order.target)

    def on_deposited(self, event: Deposited):
        yield Cancel(TransferLate)
        yield TransferEnded("paid" if self.stage == "paid" else "returned")

    def on_refused(self, event: Refused):
        if self.stage == "paid":  # by the target
            yield TransferReturned()
            yield self.pay(self.order.source)
        else:
            yield Cancel(TransferLate)
            yield TransferEnded(f"refused: {event.reason}")

    def on_late(self, event: TransferLate):
        """A clerk looks at it. Nothing is decided automatically."""

    def pay(self, account):
        return Send(Account.deposit, account, cents=self.order.cents, booked=self.order.booked)

    def apply_requested(self, event: TransferRequested):
        self.order = event

    def apply_paid(self, event: TransferPaid):
        self.stage = "paid"

    def apply_returned(self, event: TransferReturned):
        self.stage = "returning"

    def apply_ended(self, event: TransferEnded):
        self.stage = event.outcome

    def apply_late(self, event: TransferLate):
        self.stage = f"{self.stage}, late"


# --- statements ----------------------------------------------------------------------------------
#
# A projection is a table that follows the events. Its rows and its position are in one transaction
# of the database, so each event counts once. It can be thrown away: the events build it again.


class Statements:
    name = "statements"
    version = 1
    tables = {
        "statement": "account TEXT, month TEXT, paid_in BIGINT, paid_out BIGINT,"
        " PRIMARY KEY (account, month)"
    }

    def on_booked(self, event: Deposited | Withdrawn, stored, db):
        paid_in, paid_out = (event.cents, 0) if isinstance(event, Deposited) else (0, event.cents)
        db.execute(
            "INSERT INTO {statement} VALUES (?, ?, ?, ?) ON CONFLICT (account, month) DO UPDATE SET"
            " paid_in = {statement}.paid_in + excluded.paid_in,"
            " paid_out = {statement}.paid_out + excluded.paid_out",
            (stored.stream.removeprefix("account-"), f"{event.booked:%Y-%m}", paid_in, paid_out),
        )


# --- a bank at work ------------------------------------------------------------------------------


class Bank:
    def __init__(self, store, folder):
        self.store = store
        self.accounts = Repository(store, events, Account)
        self.transfers = Repository(store, events, Transfer)
        self.worker = ProcessWorker(self.transfers, [self.accounts], refusals=(RefusedError,))
        self.database = SQLite(folder / "bank.db")
        self.statements = ProjectionRunner(store, events, Statements(), self.database)

    def open(self, account, cents, day):
        clerk = Context(actor="clerk:7", reason="opened at the counter")
        opened = lambda it: it.open(f"c-{account}", account.title())  # noqa: E731
        self.accounts.execute(account, opened, context=clerk)
        self.accounts.execute(account, lambda it: it.deposit(cents, day), context=clerk)

    def transfer(self, source, target, cents, day, click=None):
        """Request a transfer. A second click with the same id changes nothing."""
        name = click or str(uuid.uuid4())
        online = Context(actor=f"customer:{source}", reason="online banking")
        order = TransferRequested(source, target, cents, day)
        self.transfers.execute(
            name, lambda it: it.request(order), command_id="request", context=online
        )
        while self.worker.step():  # in life it runs in a process of its own: worker.run(stop)
            pass
        return self.transfers.load(name).state.stage

    def balance(self, account, **moment):
        return self.accounts.as_of(account, **moment).state.cents

    def statement(self):
        self.statements.catch_up()
        with self.database.transaction() as db:
            return db.run("SELECT * FROM statement ORDER BY account, month")


def euros(cents):
    return f"{cents / 100:,.2f} EUR"


def check(what, found, expected):
    if found != expected:
        sys.exit(f"error: {what}: {found!r}, expected {expected!r}")


def january(bank):
    print("January")
    bank.open("ada", 100_000, date(2026, 1, 5))
    bank.open("eve", 20_000, date(2026, 1, 6))
    click = str(uuid.uuid4())
    for _ in range(2):
        stage = bank.transfer("ada", "eve", 25_000, date(2026, 1, 20), click)
    print(f"  ada pays eve 250.00 EUR, and clicks twice: {stage}, once")
    check("one transfer", (bank.balance("ada"), bank.balance("eve")), (75_000, 45_000))


def february(bank):
    print("February")
    stage = bank.transfer("eve", "ada", 45_001, date(2026, 2, 3))
    print(f"  eve pays ada 450.01 EUR: {stage}")
    check("refused by the source", stage[:8], "refused:")
    stage = bank.transfer("ada", "bob", 30_000, date(2026, 2, 11))
    print(f"  ada pays bob, who has no account: {stage}")
    check("refused by the target", (stage, bank.balance("ada")), ("returned", 75_000))
    bank.transfer("eve", "ada", 5_000, date(2026, 2, 25))


def statements(bank):
    print("Statements")
    rows = bank.statement()
    for account, month, paid_in, paid_out in rows:
        print(f"  {month} {account}: in {euros(paid_in)}, out {euros(paid_out)}")
    expected = Counter()
    for stored in bank.store.read_all(category="account"):
        event = events.decode(stored)
        if not isinstance(event, Opened):
            sign = 1 if isinstance(event, Deposited) else -1
            expected[stored.stream.removeprefix("account-")] += sign * event.cents
    for account in expected:
        booked = sum(paid_in - paid_out for name, _, paid_in, paid_out in rows if name == account)
        check(f"statement of {account}", booked, expected[account])
        check(f"balance of {account}", bank.balance(account), expected[account])
    bank.statements.rebuild()
    check("statements that were built again", bank.statement(), rows)


def look_back(bank, end_of_january):
    print("Ada's account at the end of January, and what February changed")
    then = bank.accounts.as_of("ada", time=end_of_january)
    now = bank.accounts.load("ada")
    print(f"  {euros(then.state.cents)} behind {then.version} events")
    for path, change in diff(then.state, now.state).items():
        print(f"  {path}: {change.before} -> {change.after}")
    check("last month", then.state.cents, 75_000)
    check("today", now.state.cents, 80_000)


def audited(bank):
    print("Audit of eve's account")
    entries = list(audit(bank.accounts, "eve"))
    for entry in entries:
        why = entry.context.reason or f"because of event {entry.context.causation[:8]}..."
        print(f"  {entry.version}. {type(entry.event).__name__:9} by {entry.context.actor}: {why}")
    check("who", [entry.context.actor for entry in entries[:2]], ["clerk:7", "clerk:7"])
    check("who", {entry.context.actor for entry in entries[2:]}, {"process:transfer"})


def forgotten(bank):
    print("Eve leaves the bank, and asks to be forgotten")
    report = bank.store.forget("c-eve")
    eve = bank.accounts.load("eve").state
    print(f"  {len(report.keys)} key deleted; her account: {eve.holder}, {euros(eve.cents)}")
    for copy in report.out_of_reach:
        print(f"  out of reach: {copy}")
    check("eve's name", eve.holder, "(forgotten)")
    check("eve's money", eve.cents, 40_000)
    check("ada's name", bank.accounts.load("ada").state.holder, "Ada")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", "-b", help="a broker; default: one of its own")
    parser.add_argument(
        "--store", default=f"bank-{uuid.uuid4().hex[:8]}", help="topic of the store"
    )
    arguments = parser.parse_args()
    test_the_account_without_a_store()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = arguments.bootstrap_servers
        if servers is None:
            servers = stack.enter_context(tidemill.Broker()).bootstrap_servers
        plain = stack.enter_context(Store(servers, arguments.store, folder=folder))
        Masters.create(folder / "master-keys")  # in life it is made once, and kept elsewhere
        keyring = Keyring(servers, arguments.store, Masters.read(folder / "master-keys"))
        store = SealedStore(plain, keyring, personal_fields({"account opened": Opened}))
        bank = Bank(store, folder)
        january(bank)
        end_of_january = datetime.now(UTC)
        february(bank)
        statements(bank)
        look_back(bank, end_of_january)
        audited(bank)
        forgotten(bank)
        bank.database.close()
    print("All checks passed.")


if __name__ == "__main__":
    main()
