"""Results and the query's progress are read as they are, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.demo.check import WindowFigures
from tidemill.demo.pipeline import QueryProgress, progress_of
from tidemill.demo.results import parse_result

RESULT = {
    "airport": "EWR",
    "window_start": "2013-03-08T17:00:00Z",
    "window_end": "2013-03-08T18:00:00Z",
    "departures": 3,
    "delay_minutes": 10,
    "mean_delay_minutes": 3.3333333333333335,
}
KEY = b"EWR|2013-03-08T17:00:00Z"


def test_a_result_is_a_window_and_its_figures() -> None:
    assert parse_result(KEY, json.dumps(RESULT)) == (
        ("EWR", 1362762000),
        WindowFigures(3, 10, 10 / 3),
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"JFK|2013-03-08T17:00:00Z", json.dumps(RESULT)),
        (KEY, "{}"),
        (KEY, "not JSON"),
        (KEY, "[]"),
        (KEY, json.dumps(RESULT | {"mean_delay_minutes": None})),
    ],
)
def test_what_is_no_result_is_refused(key: bytes, value: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse_result(key, value)


def update(
    batch: int, end: int, dropped: int, watermark: str, *, ran: bool = True
) -> dict[str, Any]:
    return {
        "batchId": batch,
        "durationMs": {"addBatch": 5} if ran else {"latestOffset": 1},
        "eventTime": {"watermark": watermark} if watermark else {},
        "stateOperators": [{"numRowsDroppedByWatermark": dropped}],
        "sources": [{"endOffset": json.dumps({"#topicIds": {}, "departures": {"0": end}})}],
    }


def test_progress_is_summed_over_the_batches_that_ran() -> None:
    updates = [
        update(0, 5, 0, ""),
        update(1, 9, 2, "2013-03-08T17:00:00.000Z"),
        update(1, 9, 2, "2013-03-08T17:00:00.000Z", ran=False),
        update(2, 9, 1, "2013-03-08T18:00:00.000Z"),
    ]
    assert progress_of(updates) == QueryProgress(
        batches=3, read_up_to=9, watermark=1362765600, dropped_late=3
    )


def test_a_query_that_has_done_nothing_has_no_progress() -> None:
    assert progress_of([]) == QueryProgress()
