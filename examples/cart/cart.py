"""A shopping cart: versions of events, a coupon for one customer, a reminder, a best-seller list.

    python examples/cart/cart.py

It starts a broker of its own and checks every figure that it prints. With -b it uses a broker that
runs, also of Apache Kafka.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import tidemill
from tidemill.eventstore.app import (
    Cancel,
    Codec,
    ProcessWorker,
    ProjectionRunner,
    Repository,
    SnapshotFile,
    SnapshotPolicy,
    Timeout,
)
from tidemill.eventstore.app.projections.sqlite import SQLite
from tidemill.eventstore.app.testing import given
from tidemill.eventstore.errors import ConditionFailedError
from tidemill.eventstore.events import Condition, NewEvent, Query
from tidemill.eventstore.store import Store

# --- events, and how they change -----------------------------------------------------------------

events = Codec()


@events.event("item added", version=2)
@dataclass(frozen=True)
class Added:
    """The first version had no number: each event was one piece."""

    item: str
    pieces: int


@events.upcast("item added", 1)
def add_number(content):
    """Events of the first version stay as they are. They are read as the second."""
    return {**content, "pieces": 1}


@events.event("item removed")
@dataclass(frozen=True)
class Removed:
    item: str


@events.event("coupon redeemed", tags=lambda event: [f"coupon:{event.code}"])
@dataclass(frozen=True)
class Redeemed:
    """Its tag lets a condition ask about all carts."""

    code: str


@events.event("checked out")
@dataclass(frozen=True)
class CheckedOut:
    """The customer pays."""


@events.event("reminder due")
@dataclass(frozen=True)
class ReminderDue:
    """A day has passed since the last change."""


# --- the cart ------------------------------------------------------------------------------------


class CartError(Exception):
    """The cart does not allow it."""


@dataclass
class Cart:
    items: dict[str, int] = field(default_factory=dict)
    coupon: str = ""
    is_open: bool = True

    def add(self, item: str, pieces: int = 1):
        self.check_open()
        return Added(item, pieces)

    def remove(self, item: str):
        self.check_open()
        return Removed(item) if item in self.items else None

    def redeem(self, code: str):
        self.check_open()
        return Redeemed(code)

    def check_out(self):
        self.check_open()
        if not self.items:
            raise CartError("the cart is empty")
        return CheckedOut()

    def check_open(self):
        if not self.is_open:
            raise CartError("the cart is checked out")

    def apply_added(self, event: Added):
        self.items[event.item] = self.items.get(event.item, 0) + event.pieces

    def apply_removed(self, event: Removed):
        del self.items[event.item]

    def apply_redeemed(self, event: Redeemed):
        self.coupon = event.code

    def apply_checked_out(self, event: CheckedOut):
        self.is_open = False


def test_the_cart_without_a_store():
    (
        given(Cart, Added("tea", 2), codec=events)
        .when(Cart.remove, "tea")
        .then(Removed("tea"))
        .when(Cart.remove, "coffee")
        .then()
        .when(Cart.check_out)
        .raises(CartError, "empty")
    )


# --- a reminder, if a cart is left ---------------------------------------------------------------


@dataclass
class Reminder:
    """A process manager for each cart. Its time-out is in the store, and survives restarts."""

    reminded: int = 0

    def on_changed(self, event: Added | Removed):
        return Timeout(ReminderDue(), after=timedelta(days=1))  # replaces the one before

    def on_checked_out(self, event: CheckedOut):
        return Cancel(ReminderDue)

    def on_due(self, event: ReminderDue):
        """Here a mail would be sent, with a Send to an aggregate that mails."""

    def apply_due(self, event: ReminderDue):
        self.reminded += 1


# --- best sellers --------------------------------------------------------------------------------


class BestSellers:
    """The pieces of each item that are in carts that were checked out."""

    name = "best_sellers"
    version = 1
    tables = {
        "in_cart": "cart TEXT, item TEXT, pieces BIGINT, PRIMARY KEY (cart, item)",
        "sold": "item TEXT PRIMARY KEY, pieces BIGINT",
    }

    def on_added(self, event: Added, stored, db):
        db.execute(
            "INSERT INTO {in_cart} VALUES (?, ?, ?) ON CONFLICT (cart, item)"
            " DO UPDATE SET pieces = {in_cart}.pieces + excluded.pieces",
            (stored.stream, event.item, event.pieces),
        )

    def on_removed(self, event: Removed, stored, db):
        db.execute("DELETE FROM {in_cart} WHERE cart = ? AND item = ?", (stored.stream, event.item))

    def on_checked_out(self, event: CheckedOut, stored, db):
        db.execute(
            "INSERT INTO {sold} SELECT item, pieces FROM {in_cart} WHERE cart = ?"
            " ON CONFLICT (item) DO UPDATE SET pieces = {sold}.pieces + excluded.pieces",
            (stored.stream,),
        )


# --- a shop at work ------------------------------------------------------------------------------


def check(what, found, expected):
    if found != expected:
        sys.exit(f"error: {what}: {found!r}, expected {expected!r}")


def old_events_are_read_as_new_ones(store, carts):
    store.append("cart-old", [NewEvent("item added", b'{"item": "tea"}')])  # as years ago
    carts.execute("old", lambda cart: cart.add("tea", 3))
    print(f"An old cart: {carts.load('old').state.items}")
    check("upcast", carts.load("old").state.items, {"tea": 4})


def a_coupon_is_redeemed_once_in_the_whole_shop(carts):
    """No cart has seen the others. The log decides which of them was first."""
    unused = [Condition((Query(tags=frozenset({"coupon:WELCOME"})),))]

    def redeem(name):
        try:
            carts.execute(name, lambda cart: cart.redeem("WELCOME"), conditions=unused)
        except ConditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        successes = list(pool.map(redeem, [f"guest-{number}" for number in range(8)]))
    print(f"A coupon, 8 customers at the same moment: {successes.count(True)} can use it")
    check("coupon", successes.count(True), 1)


def many_threads_fill_one_cart(carts):
    def add(number):
        carts.execute("family", lambda cart: cart.add("apple"), command_id=f"click {number % 20}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    cart = carts.load("family")
    print(f"40 clicks, each twice, by 8 threads: {cart.state.items} in {cart.version} events")
    check("clicks", (cart.state.items, cart.version), ({"apple": 20}, 20))


def check_out(carts):
    for name in ("family", "old"):
        carts.execute(name, lambda cart: cart.check_out(), command_id="pay")
        again = carts.execute(name, lambda cart: cart.check_out(), command_id="pay")
        check("second payment", again.repeated, True)


def a_cart_that_is_left_gets_a_reminder(store, carts):
    carts.execute("left", lambda cart: cart.add("pear"))
    today = int(time.time() * 1000)
    now = [today]
    reminders = Repository(store, events, Reminder)

    def worker():
        starts = dict.fromkeys((Added, Removed, CheckedOut), cart_of)
        return ProcessWorker(reminders, [carts], starts=starts, now_ms=lambda: now[0])

    work(worker())
    now[0] = today + 25 * 3_600_000
    work(worker())  # another process, a day later
    work(worker())
    reminded = {name: reminders.load(name).state.reminded for name in ("left", "old", "family")}
    print(f"Reminders a day later: {reminded}")
    check("reminders", reminded, {"left": 1, "old": 0, "family": 0})


def cart_of(event, stored):
    return stored.stream.removeprefix("cart-")


def work(worker):
    while worker.step():
        pass


def best_sellers(store, folder):
    database = SQLite(folder / "shop.db")
    runner = ProjectionRunner(store, events, BestSellers(), database, category="cart")
    runner.catch_up()
    runner.rebuild()
    with database.transaction() as db:
        rows = db.run("SELECT item, pieces FROM sold ORDER BY pieces DESC")
    database.close()
    print(f"Best sellers: {rows}")
    check("best sellers", rows, [("apple", 20), ("tea", 4)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", "-b", help="a broker; default: one of its own")
    parser.add_argument(
        "--store", default=f"cart-{uuid.uuid4().hex[:8]}", help="topic of the store"
    )
    arguments = parser.parse_args()
    test_the_cart_without_a_store()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = arguments.bootstrap_servers
        if servers is None:
            servers = stack.enter_context(tidemill.Broker()).bootstrap_servers
        store = stack.enter_context(Store(servers, arguments.store, folder=folder))
        # A long stream is not replayed each time: every 10 events the state is kept.
        snapshots = SnapshotPolicy(Cart, every=10, file=SnapshotFile(folder / "snapshots.db"))
        carts = Repository(store, events, Cart, snapshots=snapshots)
        old_events_are_read_as_new_ones(store, carts)
        a_coupon_is_redeemed_once_in_the_whole_shop(carts)
        many_threads_fill_one_cart(carts)
        check_out(carts)
        a_cart_that_is_left_gets_a_reminder(store, carts)
        best_sellers(store, folder)
    print("All checks passed.")


if __name__ == "__main__":
    main()
