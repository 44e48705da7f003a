"""Generates the events of Nexmark: of 50 events, one is a person, three are auctions, 46 are bids.

The same count and seed give the same events. Ids, prices, hot auctions and hot bidders have the
distributions of Nexmark's own generator, at 10,000 events in a second of event time. Must not know:
topics, Kafka clients, Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

EVENTS_PER_SECOND = 10_000
START_MS = 1_767_225_600_000
"""Time of the first event: 2026-01-01T00:00:00Z, in milliseconds since 1970."""
CLOSING_DELAY_MS = 3_600_000
"""The closing records are this much later than the last event, so they close all windows."""
FIRST_ID = 1000
"""The lowest id of a person and of an auction."""
CLOSING_ID = 1
"""Id of the closing person and of the closing auction. No other record refers to it."""

_PER_ROUND, _AUCTIONS_PER_ROUND = 50, 3
_CHUNK_ROUNDS = 1000
_HOT_EVERY = 100
"""One of so many auctions, and of so many persons, is hot at a time."""
_HOT_AUCTION_RATIO, _HOT_PERSON_RATIO = 2, 4
"""All but one of so many bids go to the hot auction, and come from the hot bidder."""
_AUCTIONS_IN_FLIGHT, _PERSONS_ACTIVE, _ID_LEAD = 100, 1000, 10
_FIRST_CATEGORY, _CATEGORIES = 10, 5
_AUCTION_HORIZON_MS = (
    _AUCTIONS_IN_FLIGHT * _PER_ROUND * 1000 // (_AUCTIONS_PER_ROUND * EVENTS_PER_SECOND)
)

_FIRST_NAMES = [
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
]
_LAST_NAMES = [
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
]
_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CITIES = [
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
]
_HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_CHANNELS = 10_000
_TEXT_LETTERS = 1 << 16


@dataclass(frozen=True)
class Events:
    """Events in the order of their times, one table for each kind. Times are ``int64``
    milliseconds since 1970."""

    persons: pa.Table
    auctions: pa.Table
    bids: pa.Table

    @property
    def count(self) -> int:
        """The number of events."""
        return sum(table.num_rows for table in (self.persons, self.auctions, self.bids))


def events(count: int, seed: int = 1) -> Iterator[Events]:
    """Generate events in chunks, and then one closing record of each kind.

    Args:
        count: Number of events, without the three closing records.
        seed: Seed of all random values.
    """
    text = _text(seed)
    size = _CHUNK_ROUNDS * _PER_ROUND
    for start in range(0, count, size):
        numbers = np.arange(start, min(start + size, count), dtype=np.int64)
        yield _chunk(numbers, np.random.default_rng([seed, start]), text)
    yield _closing(closing_ms(count))


def closing_ms(count: int) -> int:
    """Return the time of the closing records, in milliseconds since 1970."""
    return START_MS + count * 1000 // EVENTS_PER_SECOND + CLOSING_DELAY_MS


def _chunk(numbers: Ints, random: np.random.Generator, text: str) -> Events:
    rounds, places = numbers // _PER_ROUND, numbers % _PER_ROUND
    times = START_MS + numbers * 1000 // EVENTS_PER_SECOND
    is_person = places == 0
    is_auction = (places > 0) & (places <= _AUCTIONS_PER_ROUND)
    is_bid = places > _AUCTIONS_PER_ROUND
    return Events(
        _persons(rounds[is_person], times[is_person], random, text),
        _auctions(rounds[is_auction], places[is_auction], times[is_auction], random, text),
        _bids(rounds[is_bid], times[is_bid], random, text),
    )


def _persons(numbers: Ints, times: Ints, random: np.random.Generator, text: str) -> pa.Table:
    size = len(numbers)
    names = [
        f"{_FIRST_NAMES[first]} {_LAST_NAMES[last]}"
        for first, last in zip(
            random.integers(0, len(_FIRST_NAMES), size).tolist(),
            random.integers(0, len(_LAST_NAMES), size).tolist(),
            strict=True,
        )
    ]
    mail = _strings(text, random, size, 7, 7)
    hosts = _strings(text, random, size, 5, 5)
    cards = random.integers(0, 10_000, (size, 4)).tolist()
    cities = random.integers(0, len(_CITIES), size).tolist()
    states = random.integers(0, len(_STATES), size).tolist()
    return pa.table(
        {
            "id": FIRST_ID + numbers,
            "name": names,
            "emailAddress": [f"{m}@{h}.com" for m, h in zip(mail, hosts, strict=True)],
            "creditCard": [" ".join(f"{part:04d}" for part in card) for card in cards],
            "city": [_CITIES[each] for each in cities],
            "state": [_STATES[each] for each in states],
            "dateTime": times,
            "extra": _strings(text, random, size, 90, 134),
        }
    )


def _auctions(
    rounds: Ints, places: Ints, times: Ints, random: np.random.Generator, text: str
) -> pa.Table:
    size = len(rounds)
    first_bid = _prices(random, size)
    lasts = 1 + (random.random(size) * 2 * _AUCTION_HORIZON_MS).astype(np.int64)
    return pa.table(
        {
            "id": FIRST_ID + rounds * _AUCTIONS_PER_ROUND + places - 1,
            "itemName": _strings(text, random, size, 10, 20),
            "description": _strings(text, random, size, 50, 100),
            "initialBid": first_bid,
            "reserve": first_bid + _prices(random, size),
            "dateTime": times,
            "expires": times + lasts,
            "seller": FIRST_ID + _persons_of(rounds, random, is_bidder=False),
            "category": _FIRST_CATEGORY + random.integers(0, _CATEGORIES, size),
            "extra": _strings(text, random, size, 290, 434),
        }
    )


def _bids(rounds: Ints, times: Ints, random: np.random.Generator, text: str) -> pa.Table:
    size = len(rounds)
    channels, urls = _channels(random, size)
    return pa.table(
        {
            "auction": FIRST_ID + _auctions_of(rounds, random),
            "bidder": FIRST_ID + _persons_of(rounds, random, is_bidder=True),
            "price": _prices(random, size),
            "channel": channels,
            "url": urls,
            "dateTime": times,
            "extra": _strings(text, random, size, 54, 82),
        }
    )


def _auctions_of(rounds: Ints, random: np.random.Generator) -> Ints:
    """Return the auctions, counted from 0, on which persons bid after these rounds' auctions."""
    last = rounds * _AUCTIONS_PER_ROUND + _AUCTIONS_PER_ROUND - 1
    lowest = np.maximum(last - _AUCTIONS_IN_FLIGHT, 0)
    any_open = lowest + random.integers(0, last - lowest + 1 + _ID_LEAD)
    is_hot = random.integers(0, _HOT_AUCTION_RATIO, len(rounds)) > 0
    return np.where(is_hot, last // _HOT_EVERY * _HOT_EVERY, any_open)


def _persons_of(rounds: Ints, random: np.random.Generator, *, is_bidder: bool) -> Ints:
    """Return the persons, counted from 0, who bid or sell after these rounds' persons."""
    known = rounds + 1
    active = np.minimum(known, _PERSONS_ACTIVE)
    any_active = known - active + random.integers(0, active + _ID_LEAD)
    is_hot = random.integers(0, _HOT_PERSON_RATIO, len(rounds)) > 0
    return np.where(is_hot, rounds // _HOT_EVERY * _HOT_EVERY + int(is_bidder), any_active)


def _prices(random: np.random.Generator, size: int) -> Ints:
    return np.round(10 ** (random.random(size) * 6) * 100).astype(np.int64)


def _channels(random: np.random.Generator, size: int) -> tuple[list[str], list[str]]:
    is_hot = (random.integers(0, 2, size) > 0).tolist()
    hot = random.integers(0, len(_HOT_CHANNELS), size).tolist()
    other = random.integers(0, _CHANNELS, size).tolist()
    names = [
        _HOT_CHANNELS[h] if is_hot_one else f"channel-{o}"
        for is_hot_one, h, o in zip(is_hot, hot, other, strict=True)
    ]
    paths = random.integers(0, 1 << 40, size).tolist()
    urls = [
        f"https://www.nexmark.com/{h}/item.htm?query=1"
        if is_hot_one
        else f"https://www.nexmark.com/{path:010x}/item.htm?query=1&channel_id={o}"
        for is_hot_one, h, o, path in zip(is_hot, hot, other, paths, strict=True)
    ]
    return names, urls


def _text(seed: int) -> str:
    """Return random letters. All random strings are parts of it."""
    letters = np.random.default_rng([seed, 2**32]).integers(0, 26, _TEXT_LETTERS)
    return (letters + ord("a")).astype(np.uint8).tobytes().decode()


def _strings(
    text: str, random: np.random.Generator, size: int, shortest: int, longest: int
) -> list[str]:
    starts = random.integers(0, len(text) - longest, size)
    ends = starts + random.integers(shortest, longest + 1, size)
    return [text[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def _closing(at: int) -> Events:
    """Return one late record of each kind. It closes the windows of all events before it."""
    person = {"id": CLOSING_ID, "name": "closing", "emailAddress": "", "creditCard": ""}
    person |= {"city": "", "state": "", "dateTime": at, "extra": ""}
    auction = {"id": CLOSING_ID, "itemName": "", "description": "", "initialBid": 0, "reserve": 0}
    auction |= {"dateTime": at, "expires": at, "seller": CLOSING_ID, "category": 0, "extra": ""}
    bid = {"auction": CLOSING_ID, "bidder": CLOSING_ID, "price": 0, "channel": "", "url": ""}
    bid |= {"dateTime": at, "extra": ""}
    tables = [pa.Table.from_pylist([each]) for each in (person, auction, bid)]
    return Events(*tables)
