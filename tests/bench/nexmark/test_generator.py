"""Nexmark's generator: the same events each time, in the proportions of the benchmark."""

from __future__ import annotations

from bench.nexmark.generator import (
    CLOSING_DELAY_MS,
    CLOSING_ID,
    EVENTS_PER_SECOND,
    START_MS,
    Events,
    closing_ms,
    events,
)

from tests.bench.nexmark.all_events import all_events

COUNT = 100_000


def real(chunks: list[Events]) -> list[Events]:
    return chunks[:-1]


def test_the_same_seed_gives_the_same_events_and_another_seed_gives_others() -> None:
    assert all_events(60_000) == all_events(60_000)
    assert all_events(60_000, seed=2).bids != all_events(60_000).bids


def test_a_longer_run_begins_with_the_events_of_a_shorter_one() -> None:
    short, long = list(events(50_000)), list(events(100_000))

    assert short[0] == long[0]


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_are_bids() -> None:
    found = real(list(events(COUNT)))

    assert sum(each.persons.num_rows for each in found) == COUNT // 50
    assert sum(each.auctions.num_rows for each in found) == COUNT * 3 // 50
    assert sum(each.bids.num_rows for each in found) == COUNT * 46 // 50
    assert sum(each.count for each in found) == COUNT


def test_an_incomplete_round_has_its_first_events() -> None:
    [chunk, _closing] = events(53)

    assert (chunk.persons.num_rows, chunk.auctions.num_rows, chunk.bids.num_rows) == (2, 5, 46)


def test_ids_of_persons_and_auctions_are_consecutive_and_times_never_decrease() -> None:
    found = all_events(COUNT)

    assert found.persons["id"].to_pylist()[:-1] == list(range(1000, 1000 + COUNT // 50))
    assert found.auctions["id"].to_pylist()[:-1] == list(range(1000, 1000 + COUNT * 3 // 50))
    for table in (found.persons, found.auctions, found.bids):
        times = table["dateTime"].to_pylist()
        assert times == sorted(times)
        assert times[0] >= START_MS
        assert times[-2] < START_MS + COUNT * 1000 // EVENTS_PER_SECOND


def test_half_of_the_bids_go_to_hot_auctions_and_three_quarters_come_from_hot_bidders() -> None:
    bids = all_events(COUNT).bids

    hot_auctions = sum(each % 100 == 0 for each in bids["auction"].to_pylist())
    hot_bidders = sum(each % 100 == 1 for each in bids["bidder"].to_pylist())
    assert 0.49 < hot_auctions / bids.num_rows < 0.53
    assert 0.74 < hot_bidders / bids.num_rows < 0.78


def test_auctions_end_after_they_begin_and_within_a_second() -> None:
    auctions = all_events(COUNT).auctions.slice(0, COUNT * 3 // 50)

    for begin, end in zip(
        auctions["dateTime"].to_pylist(), auctions["expires"].to_pylist(), strict=True
    ):
        assert 0 < end - begin < 1000


def test_the_last_chunk_is_one_closing_record_of_each_kind() -> None:
    *_, last = events(1000)

    assert last.count == 3
    assert last.persons["id"].to_pylist() == last.auctions["id"].to_pylist() == [CLOSING_ID]
    assert last.bids["dateTime"].to_pylist() == [closing_ms(1000)]
    assert closing_ms(1000) == START_MS + 100 + CLOSING_DELAY_MS
