"""The batch computations of Nexmark, compared with loops over the same events in Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from bench.nexmark.expected import result
from bench.nexmark.generator import CLOSING_ID, Events
from bench.nexmark.queries import QUERIES

from tests.bench.nexmark.all_events import all_events

Rows = list[tuple[Any, ...]]
WINDOW_MS, SLIDE_MS, GAP_MS = 10_000, 2_000, 10_000


@pytest.fixture(scope="module")
def found() -> Events:
    return all_events(150_000)


def bids_of(found: Events) -> list[dict[str, Any]]:
    return [each for each in found.bids.to_pylist() if each["auction"] != CLOSING_ID]


def rows(found: Events, query: str) -> Rows:
    return sorted(tuple(each) for each in result(found, query))


def start_of(ms: int, size: int = WINDOW_MS) -> int:
    return ms // size * size


@pytest.mark.parametrize("query", QUERIES)
def test_a_result_has_rows_with_the_columns_of_the_query(found: Events, query: str) -> None:
    kinds = {"integer": int, "number": float, "text": str, "time": int}

    first = next(iter(result(found, query)))

    assert [type(each) for each in first] == [kinds[k] for k in QUERIES[query].columns.values()]


def test_q1_has_a_row_for_each_bid_and_the_closing_bid(found: Events) -> None:
    bids = found.bids.to_pylist()

    prices = Counter(row[2] for row in rows(found, "q1"))
    assert prices == Counter(bid["price"] * 0.908 for bid in bids)
    assert len(rows(found, "q0")) == len(bids)


def test_q2_has_the_bids_of_each_123rd_auction(found: Events) -> None:
    wanted = [(b["auction"], b["price"]) for b in bids_of(found) if b["auction"] % 123 == 0]

    assert rows(found, "q2") == sorted(wanted)


def test_q3_joins_sellers_with_their_auctions(found: Events) -> None:
    sellers = {each["id"]: each for each in found.persons.to_pylist()}
    wanted = []
    for auction in found.auctions.to_pylist():
        seller = sellers.get(auction["seller"])
        if seller and auction["category"] == 10 and seller["state"] in ("OR", "ID", "CA"):
            wanted.append((seller["name"], seller["city"], seller["state"], auction["id"]))

    assert rows(found, "q3") == sorted(wanted)


def test_q4_averages_the_closing_prices_of_each_category(found: Events) -> None:
    auctions = {each["id"]: each for each in found.auctions.to_pylist()}
    highest: dict[int, int] = {}
    for bid in bids_of(found):
        auction = auctions.get(bid["auction"])
        if auction and auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            highest[auction["id"]] = max(highest.get(auction["id"], 0), bid["price"])
    prices = defaultdict(list)
    for number, price in highest.items():
        window = start_of(auctions[number]["dateTime"])
        prices[window * 1000, auctions[number]["category"]].append(price)

    wanted = [(*key, sum(each) / len(each)) for key, each in prices.items()]
    assert rows(found, "q4") == sorted(wanted)


def test_q5_has_the_auction_with_the_most_bids_of_each_sliding_window(found: Events) -> None:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in bids_of(found):
        for step in range(5):
            counts[start_of(bid["dateTime"], SLIDE_MS) - step * SLIDE_MS][bid["auction"]] += 1

    best = {start: max((n, auction) for auction, n in c.items()) for start, c in counts.items()}
    assert rows(found, "q5") == sorted((s * 1000, auction, n) for s, (n, auction) in best.items())


def test_q7_has_the_highest_bid_of_each_window(found: Events) -> None:
    best: dict[int, tuple[int, int, int, int]] = {}
    for bid in bids_of(found):
        each = (bid["price"], bid["dateTime"], bid["auction"], bid["bidder"])
        start = start_of(bid["dateTime"])
        best[start] = max(best.get(start, each), each)

    assert rows(found, "q7") == sorted(
        (start * 1000, auction, bidder, price, at * 1000)
        for start, (price, at, auction, bidder) in best.items()
    )


def test_q8_has_persons_who_sell_in_their_first_window(found: Events) -> None:
    sellers = {(start_of(a["dateTime"]), a["seller"]) for a in found.auctions.to_pylist()}
    wanted = {
        (start_of(p["dateTime"]) * 1000, p["id"], p["name"])
        for p in found.persons.to_pylist()
        if (start_of(p["dateTime"]), p["id"]) in sellers and p["id"] != CLOSING_ID
    }

    assert rows(found, "q8") == sorted(wanted)


def test_q11_counts_the_bids_of_each_session(found: Events) -> None:
    sessions: list[tuple[Any, ...]] = []
    for bidder, times in _times_by_bidder(found):
        start = last = times[0]
        count = 0
        for at in [*times, None]:
            if at is None or at - last > GAP_MS:
                sessions.append((bidder, start * 1000, (last + GAP_MS) * 1000, count))
                start, count = at or 0, 0
            last, count = at or 0, count + 1

    assert rows(found, "q11") == sorted(sessions)


def _times_by_bidder(found: Events) -> Iterator[tuple[int, list[int]]]:
    times = defaultdict(list)
    for bid in bids_of(found):
        times[bid["bidder"]].append(bid["dateTime"])
    yield from times.items()
