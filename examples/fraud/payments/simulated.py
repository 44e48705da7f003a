"""Simulate a bank: its cards, their payments in the order of time, and which of them are fraud.

Numbers are whole: cents, kilometres and milliseconds since 1970. So each language computes the same
with them.
"""

import math
import random
from dataclasses import dataclass, field, replace

DAY_MS = 86_400_000
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
AMOUNT, TERMINAL, STOLEN = "amount", "compromised terminal", "stolen credentials"
SMALL_THEN_LARGE = "small then large"
SCENARIOS = (AMOUNT, TERMINAL, STOLEN, SMALL_THEN_LARGE)

SIDE_KM, RADIUS_KM = 1000, 50
"""A customer pays at the terminals within the radius: a twentieth of the side, as in the book."""


@dataclass(frozen=True)
class Payment:
    """A payment. ``fraud`` is the scenario, or empty: what the rules have to find out."""

    at: int
    card: str
    terminal: str
    x: int
    y: int
    cents: int
    fraud: str = ""
    id: str = ""


@dataclass
class Card:
    """A card, its holder's home, and what the holder usually pays from each time on."""

    id: str
    x: int
    y: int
    usual: list[tuple[int, int]]
    per_day: float
    trip: tuple[int, int, int, int] | None = None  # first day, last day, where


@dataclass
class Bank:
    seed: int
    cards: list[Card] = field(default_factory=list)
    payments: list[Payment] = field(default_factory=list)


def generate(seed: int, days: int = 60, cards: int = 200, terminals: int = 400) -> Bank:
    """Simulate one bank.

    Args:
        seed: chooses everything that is random. It is also a part of all ids.
        days: how long, from 2026-01-01 on.
        cards: the number of customers; each has one card.
        terminals: where one can pay.

    Returns:
        The bank. Payments are in the order of time, and their ids in this order, too.
    """
    chance = random.Random(seed)
    places = {
        f"{seed}-t{number:04}": (chance.randrange(SIDE_KM), chance.randrange(SIDE_KM))
        for number in range(terminals)
    }
    bank = Bank(seed)
    for number in range(cards):
        bank.cards.append(_card(chance, f"{seed}-c{number:04}", days))
    payments = []
    for card in bank.cards:
        home = _near(places, card.x, card.y)
        away = _near(places, *card.trip[2:]) if card.trip else []
        for day in range(days):
            payments += _day(chance, card, day, home, away, places)
    payments.sort(key=lambda each: (each.at, each.card))
    _compromise(chance, payments, list(places), days)
    _steal(chance, payments, bank.cards, list(places.items()), days)
    payments += _small_then_large(chance, bank.cards, list(places.items()), days)
    payments = [
        replace(each, fraud=AMOUNT) if each.cents > 22_000 and not each.fraud else each
        for each in payments
    ]
    payments.sort(key=lambda each: (each.at, each.card, each.cents))
    bank.payments = [
        replace(each, id=f"{seed}-p{number:06}") for number, each in enumerate(payments)
    ]
    return bank


def _card(chance, identity, days):
    """One customer. *Ours*: some have a rise in salary, and some a trip."""
    mean = chance.uniform(500, 10_000)
    usual = [(START_MS - DAY_MS, round(mean))]
    if chance.random() < 0.2:
        from_day = chance.randrange(days // 4, days)
        usual.append((START_MS + from_day * DAY_MS, round(min(mean * 2, 10_000))))
    x, y = chance.randrange(SIDE_KM), chance.randrange(SIDE_KM)
    trip = None
    if chance.random() < 0.2:
        first = chance.randrange(days)
        last = first + chance.randint(3, 10)
        trip = (first, last, chance.randrange(SIDE_KM), chance.randrange(SIDE_KM))
    return Card(identity, x, y, usual, chance.uniform(0, 4), trip)


def _near(places, x, y):
    """The terminals within the radius, or the nearest one if there is none."""
    distances = {name: math.dist(place, (x, y)) for name, place in places.items()}
    return [name for name, km in distances.items() if km < RADIUS_KM] or [
        min(distances, key=distances.__getitem__)
    ]


def _day(chance, card, day, home, away, places):
    """A day of a customer: around noon, with a standard deviation of 20,000 seconds."""
    terminals = home
    if card.trip and card.trip[0] <= day <= card.trip[1]:
        terminals = away
        if day in card.trip[:2]:
            return  # on the road
    for _ in range(_poisson(chance, card.per_day)):
        second = int(chance.gauss(43_200, 20_000))
        if not 0 < second < 86_400:
            continue
        at = START_MS + day * DAY_MS + second * 1000
        usual = next(cents for since, cents in reversed(card.usual) if since <= at)
        cents = round(chance.gauss(usual, usual / 2))
        if cents <= 0:
            cents = max(1, round(chance.uniform(0, 2 * usual)))
        if chance.random() < 0.03:
            cents = chance.randint(10, 99)  # *ours*: a stamp, a parking meter
        if chance.random() < 0.0005:
            cents = chance.randint(22_001, 60_000)  # *ours*: the book has few of them
        terminal = chance.choice(terminals)
        yield Payment(at, card.id, terminal, *places[terminal], cents)


def _poisson(chance, mean):
    """Knuth's algorithm."""
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


def _compromise(chance, payments, terminals, days):
    """Scenario 2: all payments at a terminal are fraud for 28 days. Here: one in three days."""
    until = {}
    for day in range(0, days, 3):
        until[chance.choice(terminals)] = (day, day + 28)
    for number, each in enumerate(payments):
        first, last = until.get(each.terminal, (0, 0))
        if first <= (each.at - START_MS) // DAY_MS < last:
            payments[number] = replace(each, fraud=TERMINAL)


def _steal(chance, payments, cards, places, days):
    """Scenario 3: for 14 days, a third of a customer's payments is five times as high, and fraud.

    Here: a customer in three days. *Ours*: the thief pays at any terminal, near or far.
    """
    until = {}
    for day in range(0, days, 3):
        until[chance.choice(cards).id] = (day, day + 14)
    for number, each in enumerate(payments):
        first, last = until.get(each.card, (0, 0))
        if first <= (each.at - START_MS) // DAY_MS < last and chance.random() < 1 / 3:
            name, (x, y) = chance.choice(places)
            payments[number] = replace(
                each, cents=each.cents * 5, terminal=name, x=x, y=y, fraud=STOLEN
            )


def _small_then_large(chance, cards, places, days):
    """The pattern of Flink's walkthrough: a payment below 1.00 tries the card, a large one follows.

    There a large one is above 500.00, and within a minute. Here it is below the 220.00 above which
    the first scenario makes every payment a fraud: a thief who knows a limit stays below it.
    """
    for day in range(0, days, 2):
        card, (name, (x, y)) = chance.choice(cards), chance.choice(places)
        at = START_MS + day * DAY_MS + chance.randrange(86_300) * 1000
        small = Payment(at, card.id, name, x, y, chance.randint(10, 99), SMALL_THEN_LARGE)
        yield small
        wait, cents = chance.randint(5, 60) * 1000, chance.randint(8_000, 21_900)
        yield replace(small, at=at + wait, cents=cents)
