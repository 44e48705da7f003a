"""Requests about transactions, with scripted answers of coordinators and partition leaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.kafka_client.admin import transactions
from tidemill.kafka_client.admin.open_writes import OpenWrite, abort_write, open_writes
from tidemill.kafka_client.admin.requests import BrokerRequests
from tidemill.kafka_client.admin.transactions import (
    STATES,
    FilterNotSupportedError,
    Listing,
    describe_listed,
    describe_transaction,
    fence,
    list_transactions,
    state_text,
)
from tidemill.kafka_client.errors import RefusedError
from tidemill.kafka_client.settings import Address

HERE = Address("localhost", 1)
DESCRIBE_PRODUCERS, WRITE_MARKERS, DESCRIBE, LIST = 61, 27, 65, 66
INIT = 22
KEY = ("t", 0)


class ScriptedRequests:
    """A broker with scripted answers, in order, that records the requests."""

    def __init__(self, answers: Mapping[int, Sequence[dict[str, Any]]], newest: int = 2) -> None:
        self._answers = {api_key: list(each) for api_key, each in answers.items()}
        self._newest = newest
        self.asked: list[tuple[int, Mapping[str, Any]]] = []

    def brokers(self) -> dict[int, Address]:
        return {0: HERE}

    def leaders(self, keys: Collection[tuple[str, int]], **_: Any) -> dict[Any, Address]:
        return dict.fromkeys(keys, HERE)

    def transaction_coordinator(self, _: str) -> tuple[int, Address]:
        return 0, HERE

    def version(self, _: Address, api_key: int, versions: tuple[int, int]) -> int:
        return min(self._newest, max(versions))

    def ask(
        self, _: Address, api_key: int, versions: tuple[int, int], request: Mapping[str, Any]
    ) -> Any:
        self.asked.append((api_key, request))
        return message(self._answers[api_key].pop(0))


def message(tree: Any) -> Any:
    """Return a tree as the codec gives it: structures with attributes."""
    if isinstance(tree, dict):
        return SimpleNamespace(**{name: message(each) for name, each in tree.items()})
    return tuple(message(each) for each in tree) if isinstance(tree, list) else tree


def as_requests(scripted: ScriptedRequests) -> BrokerRequests:
    return cast(BrokerRequests, scripted)


def producers(*starts: tuple[int, int]) -> dict[str, Any]:
    """A DescribeProducers answer: (producer id, first offset or -1) on partition 0."""
    active = [
        {
            "producer_id": producer_id,
            "producer_epoch": 3,
            "last_timestamp": -1,
            "coordinator_epoch": -1,
            "current_txn_start_offset": start,
        }
        for producer_id, start in starts
    ]
    partition = {"partition_index": 0, "error_code": 0, "error_message": None}
    return {"topics": [{"name": "t", "partitions": [partition | {"active_producers": active}]}]}


def listed(*producer_ids: int) -> dict[str, Any]:
    states = [
        {"transactional_id": f"id-{p}", "producer_id": p, "transaction_state": "Ongoing"}
        for p in producer_ids
    ]
    return {"error_code": 0, "transaction_states": states}


def described(producer_id: int, state: str = "Ongoing", partition: int = 0) -> dict[str, Any]:
    found = {
        "error_code": 0,
        "transactional_id": f"id-{producer_id}",
        "transaction_state": state,
        "transaction_timeout": 1000,
        "transaction_start_time": 5,
        "producer_id": producer_id,
        "producer_epoch": 3,
        "topics": [{"topic": "t", "partitions": [partition]}],
    }
    return {"transaction_states": [found]}


def test_an_open_write_is_its_coordinators_transaction() -> None:
    requests = ScriptedRequests(
        {
            DESCRIBE_PRODUCERS: [producers((7, 10), (8, -1))],
            LIST: [listed(7)],
            DESCRIBE: [described(7)],
        }
    )
    (found,) = open_writes(as_requests(requests), [KEY])
    assert found.owner is not None
    assert (found.owner.transactional_id, found.first_offset) == ("id-7", 10)
    assert (found.last_write_ms, found.idle_ms) == (None, None)


@pytest.mark.parametrize(
    "answers",
    [
        {LIST: [listed(), listed()]},
        {LIST: [listed(7)] * 2, DESCRIBE: [described(7, "CompleteAbort")] * 2},
        {LIST: [listed(7)] * 2, DESCRIBE: [described(7, partition=1)] * 2},
    ],
    ids=["no id", "ended", "elsewhere"],
)
def test_an_open_write_that_no_transaction_accounts_for_hangs(
    answers: dict[int, list[dict[str, Any]]],
) -> None:
    requests = ScriptedRequests({DESCRIBE_PRODUCERS: [producers((7, 10))] * 2} | answers)
    (found,) = open_writes(as_requests(requests), [KEY])
    assert found.owner is None


def test_a_transaction_that_ended_between_the_requests_does_not_hang() -> None:
    requests = ScriptedRequests(
        {
            DESCRIBE_PRODUCERS: [producers((7, 10), (9, 12)), producers((9, 12))],
            LIST: [listed(9), listed(9)],
            DESCRIBE: [described(9), described(9)],
        }
    )
    assert [each.producer_id for each in open_writes(as_requests(requests), [KEY])] == [9]


def test_where_nothing_is_open_no_coordinator_is_asked() -> None:
    requests = ScriptedRequests({DESCRIBE_PRODUCERS: [producers((7, -1))]})
    assert open_writes(as_requests(requests), [KEY]) == []


def test_an_abort_marker_has_the_producers_epoch_and_no_negative_coordinator_epoch() -> None:
    write = OpenWrite("t", 0, 7, 3, -1, 10, None)
    done = {"partition_index": 0, "error_code": 0}
    answer = {"markers": [{"producer_id": 7, "topics": [{"name": "t", "partitions": [done]}]}]}
    requests = ScriptedRequests({WRITE_MARKERS: [answer]})
    abort_write(as_requests(requests), write)
    ((_, request),) = requests.asked
    assert request["markers"] == [
        {
            "producer_id": 7,
            "producer_epoch": 3,
            "transaction_result": False,
            "topics": [{"name": "t", "partition_indexes": [0]}],
            "coordinator_epoch": 0,
        }
    ]
    done["error_code"] = 47
    with pytest.raises(RefusedError, match="t partition 0: invalid producer epoch"):
        abort_write(as_requests(ScriptedRequests({WRITE_MARKERS: [answer]})), write)


def test_fencing_uses_a_short_timeout_if_the_old_one_is_not_allowed() -> None:
    too_long, done = ({"error_code": c, "producer_id": 7, "producer_epoch": 4} for c in (50, 0))
    requests = ScriptedRequests({INIT: [too_long, done]})
    assert fence(as_requests(requests), "id-7", timeout_ms=900_000) == (7, 4)
    assert [asked["transaction_timeout"] for _, asked in requests.asked] == [900_000, 1]


def test_another_refusal_to_fence_is_an_error() -> None:
    refused = {"error_code": 53, "producer_id": -1, "producer_epoch": -1}
    requests = ScriptedRequests({INIT: [refused]})
    with pytest.raises(RefusedError, match="id-7: transactional id authorization") as failed:
        fence(as_requests(requests), "id-7", timeout_ms=1000)
    assert failed.value.code == 53


def test_an_older_broker_is_not_asked_with_a_filter_that_it_would_ignore() -> None:
    for newest, filter_ in ((0, "open_longer_than_ms"), (1, "id_pattern")):
        requests = as_requests(ScriptedRequests({}, newest=newest))
        with pytest.raises(FilterNotSupportedError) as failed:
            list_transactions(
                requests,
                open_longer_than_ms=5 if newest == 0 else None,
                id_pattern="a" if newest == 1 else None,
            )
        assert (failed.value.filter, failed.value.broker) == (filter_, HERE)
    requests = as_requests(ScriptedRequests({LIST: [listed(4)]}, newest=0))
    assert list_transactions(requests) == [Listing("id-4", "ongoing", 4, 0)]


def test_ids_that_ended_since_they_were_listed_are_left_out() -> None:
    gone = described(5)
    gone["transaction_states"][0]["error_code"] = 105
    both = {"transaction_states": described(4)["transaction_states"] + gone["transaction_states"]}
    requests = as_requests(ScriptedRequests({DESCRIBE: [both, gone]}))
    found = describe_listed(requests, [Listing(f"id-{n}", "ongoing", n, 0) for n in (4, 5)])
    assert [(each.transactional_id, each.started_ms) for each in found] == [("id-4", 5)]
    assert describe_transaction(requests, "id-5") is None


def test_many_ids_are_described_in_bounded_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MOST_DESCRIBED", 2)
    requests = ScriptedRequests({DESCRIBE: [described(1), described(3)]})
    listings = [Listing(f"id-{n}", "ongoing", n, 0) for n in range(3)]
    assert len(describe_listed(as_requests(requests), listings)) == 2
    asked = [request["transactional_ids"] for _, request in requests.asked]
    assert asked == [["id-0", "id-1"], ["id-2"]]


def test_a_coordinator_that_is_gone_is_an_error() -> None:
    requests = as_requests(ScriptedRequests({}))
    with pytest.raises(RefusedError, match="coordinator 8: not available"):
        describe_listed(requests, [Listing("id-1", "ongoing", 1, 8)])


def test_a_partition_that_a_leader_refuses_is_an_error_or_is_reported() -> None:
    refused = producers()
    refused["topics"][0]["partitions"][0]["error_code"] = 29
    with pytest.raises(RefusedError, match="t partition 0: topic authorization failed"):
        open_writes(as_requests(ScriptedRequests({DESCRIBE_PRODUCERS: [refused]})), [KEY])
    reported: list[RefusedError] = []
    requests = as_requests(ScriptedRequests({DESCRIBE_PRODUCERS: [refused]}))
    assert open_writes(requests, [KEY], report=reported.append) == []
    assert [each.code for each in reported] == [29]


def test_states_have_one_spelling_and_unknown_ones_are_shown() -> None:
    assert {state_text(kafka): kafka for kafka in STATES.values()} == STATES
    assert state_text("PreparingRebalance") == "preparing-rebalance"
    assert state_text("SomethingNew") == "something-new"
    assert state_text("") == "unknown"
