"""Requests about transactions, with scripted answers of coordinators and partition leaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import pytest

from tidemill.cli.broker_requests import BrokerRequests
from tidemill.cli.output import UsageError
from tidemill.cli.transaction.commands import State, duration_ms
from tidemill.cli.transaction.coordinators import (
    STATES,
    Listing,
    fence,
    list_transactions,
    state_text,
)
from tidemill.cli.transaction.open_writes import OpenWrite, abort_write, open_writes
from tidemill.kafka_client.settings import Address
from tidemill.log.errors import InvalidProducerEpochError
from tidemill.protocols.kafka.errors import UnsupportedVersionError

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

    def leaders(self, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], Address]:
        return dict.fromkeys(keys, HERE)

    def coordinators(self, ids: Sequence[str]) -> dict[str, tuple[int, Address]]:
        return dict.fromkeys(ids, (0, HERE))

    def version(self, _: Address, api_key: int, versions: range) -> int:
        return min(self._newest, max(versions))

    def ask(
        self, _: Address, api_key: int, versions: range, request: Mapping[str, Any]
    ) -> dict[str, Any]:
        self.asked.append((api_key, request))
        return self._answers[api_key].pop(0)


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
    with pytest.raises(InvalidProducerEpochError, match="t partition 0"):
        abort_write(as_requests(ScriptedRequests({WRITE_MARKERS: [answer]})), write)


def test_fencing_uses_a_short_timeout_if_the_old_one_is_not_allowed() -> None:
    too_long, done = ({"error_code": c, "producer_id": 7, "producer_epoch": 4} for c in (50, 0))
    requests = ScriptedRequests({INIT: [too_long, done]})
    assert fence(as_requests(requests), "id-7", timeout_ms=900_000) == (7, 4)
    assert [asked["transaction_timeout"] for _, asked in requests.asked] == [900_000, 1]


def test_an_older_broker_is_not_asked_with_a_filter_that_it_would_ignore() -> None:
    for newest, option in ((0, "--open-longer-than"), (1, "--id-pattern")):
        requests = as_requests(ScriptedRequests({}, newest=newest))
        with pytest.raises(UnsupportedVersionError, match=option):
            list_transactions(
                requests,
                open_longer_than_ms=5 if newest == 0 else None,
                id_pattern="a" if newest == 1 else None,
            )
    requests = as_requests(ScriptedRequests({LIST: [listed(4)]}, newest=0))
    assert list_transactions(requests) == [Listing("id-4", "ongoing", 4, 0)]


def test_states_have_one_spelling_and_unknown_ones_are_shown() -> None:
    assert [each.value for each in State] == list(STATES)
    assert state_text("PrepareEpochFence") == "prepare-epoch-fence"
    assert state_text("SomethingNew") == "somethingnew"


def test_durations_are_read_as_people_write_them() -> None:
    cases = {"500ms": 500, "30s": 30_000, "5m": 300_000, "1h30m": 5_400_000, "2d 1h": 176_400_000}
    assert {text: duration_ms(text, "--x") for text in cases} == cases
    for text in ("", "5", "m", "5 minutes", "-5m", "1e3s"):
        with pytest.raises(UsageError, match="expected a duration"):
            duration_ms(text, "--x")
