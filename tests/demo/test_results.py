"""Results are read as they are, or refused; a query is done when nothing can follow."""

from __future__ import annotations

import pytest

from tidemill.demo.pipeline import all_have_started, has_read
from tidemill.demo.results import parse
from tidemill.spark.pipelines.progress import QueryStatus, SourceStatus


def test_a_result_is_a_json_object() -> None:
    assert parse(b'{"airport": "EWR", "departures": 3}') == {"airport": "EWR", "departures": 3}


@pytest.mark.parametrize("value", [b"", b"not JSON", b"[]", b"3"])
def test_an_invalid_result_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"(?i)json|input|literal"):
        parse(value)


def status(
    *sources: SourceStatus,
    watermark: str | None = None,
    has_watermark: bool = False,
    state_rows: int = 0,
    batch: int = 1,
    query: str = "q",
) -> QueryStatus:
    return QueryStatus(
        pipeline="p",
        query=query,
        state="running",
        batch=batch,
        watermark=watermark,
        has_watermark=has_watermark or watermark is not None,
        state_rows=state_rows,
        sources=sources,
    )


ENDS = {"departures": 10, "arrivals": 5, "aircraft": 7}
ALL = SourceStatus("departures", 0, 10)
LATE, DONE = "1970-01-01T00:01:39.000Z", "1970-01-01T00:01:40.000Z"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (status(ALL), True),
        (status(SourceStatus("departures", 0, 9)), False),
        (status(SourceStatus("departures", 0, 0)), False),
        # What a query waits for in its state is published when the watermark has come.
        (status(ALL, watermark=LATE, state_rows=1), False),
        (status(ALL, has_watermark=True, state_rows=1), False),  # it has not come at all
        (status(ALL, watermark=DONE, state_rows=1), True),
        (status(ALL, watermark=LATE, state_rows=0), True),
        (status(ALL, SourceStatus("arrivals", 0, 4)), False),
        (status(ALL, SourceStatus("arrivals", 0, 5)), True),
        # A table that is looked up is not streamed.
        (status(ALL, SourceStatus("aircraft", -1, 0), query="enriched"), True),
        (status(SourceStatus("departures", 0, 9), query="enriched"), False),
        (status(SourceStatus("aircraft", -1, 0)), False),
        (status(SourceStatus("aircraft", 0, 6)), False),
        (status(SourceStatus("aircraft", 0, 7), state_rows=3), True),
    ],
)
def test_a_query_is_done_when_it_has_read_all_and_waits_for_nothing(
    given: QueryStatus, expected: bool
) -> None:
    assert has_read(given, ENDS, 100) is expected


def test_a_pipeline_has_started_when_each_query_has_run_a_batch() -> None:
    assert not all_have_started([])
    assert not all_have_started([status(batch=0), status(batch=-1)])
    assert all_have_started([status(batch=0), status(batch=3)])
