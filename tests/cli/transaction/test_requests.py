"""Requests about transactions, as commands word them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka_client.admin.test_transactions import (
    HERE,
    INIT,
    LIST,
    ScriptedRequests,
    as_requests,
)
from tidemill.cli.output import UsageError
from tidemill.cli.transaction.commands import State, duration_ms
from tidemill.cli.transaction.requests import fence, list_ids
from tidemill.kafka_client.admin import requests as admin
from tidemill.kafka_client.admin.transactions import STATES
from tidemill.kafka_client.errors import RequestNotSupportedError
from tidemill.state.errors import ConcurrentTransactionsError


def test_an_error_for_an_older_broker_names_the_option() -> None:
    cases: list[tuple[int, dict[str, Any], str]] = [
        (0, {"open_longer_than_ms": 5}, "--open-longer-than"),
        (1, {"id_pattern": "a"}, "--id-pattern"),
    ]
    for newest, filters, option in cases:
        requests = as_requests(ScriptedRequests({}, newest=newest))
        with pytest.raises(RequestNotSupportedError) as failed:
            list_ids(requests, **filters)
        assert str(failed.value) == f"the broker at {HERE} does not support {option}"


def test_a_pattern_that_a_broker_rejects_is_a_mistake_of_the_user() -> None:
    rejected = {"error_code": 128, "transaction_states": []}
    with pytest.raises(UsageError, match="--id-pattern"):
        list_ids(as_requests(ScriptedRequests({LIST: [rejected]})), id_pattern="(")


def test_an_abort_that_waits_for_partitions_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "REQUEST_S", -1)
    ending = {"error_code": 51, "producer_id": -1, "producer_epoch": -1}
    with pytest.raises(ConcurrentTransactionsError) as failed:
        fence(as_requests(ScriptedRequests({INIT: [ending]})), "id-7", 1000)
    assert "tidemill transaction describe id-7" in failed.value.hint


def test_states_of_the_option_are_those_of_brokers() -> None:
    assert [each.value for each in State] == list(STATES)


def test_durations_are_read_as_people_write_them() -> None:
    cases = {"500ms": 500, "30s": 30_000, "5m": 300_000, "1h30m": 5_400_000, "2d 1h": 176_400_000}
    assert {text: duration_ms(text, "--x") for text in cases} == cases
    for text in ("", "5", "m", "5 minutes", "-5m", "1e3s"):
        with pytest.raises(UsageError, match="expected a duration"):
            duration_ms(text, "--x")
