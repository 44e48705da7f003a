"""Traces: a context is passed on by each part, and spans are made where OpenTelemetry is set up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tests.support.spans import PARENT, recorded
from tidemill import tracing
from tidemill.spark.pipelines.start import trace_batch
from tidemill.tracing import context_in, record, span, with_context


@pytest.fixture
def spans() -> Iterator[Any]:
    """Set up OpenTelemetry; give the spans that have ended, by name."""
    with recorded() as found:
        yield found


@pytest.mark.parametrize(
    "value",
    [
        "",
        PARENT[:-1],
        PARENT + "-more",  # only later versions can have more
        PARENT.upper(),
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
        "01" + PARENT[2:] + "-é",
        "01" + PARENT[2:] + "-" + "x" * 1000,
        b"\xff" * 55,
        None,
    ],
)
def test_a_malformed_context_is_not_passed_on(value: Any) -> None:
    assert context_in([("traceparent", value), ("tracestate", "a=b")]) == {}


def test_a_context_is_found_in_headers_of_any_kind() -> None:
    assert context_in([("a", None), ("Traceparent", PARENT)]) == {"traceparent": PARENT}
    found = context_in([("traceparent", PARENT.encode()), ("tracestate", b"a=b")])
    assert found == {"traceparent": PARENT, "tracestate": "a=b"}
    for state in ("x" * 513, "é", ""):
        assert context_in([("traceparent", PARENT), ("tracestate", state)]) == {
            "traceparent": PARENT
        }
    assert context_in([("tracestate", "a=b")]) == {}
    later = "01" + PARENT[2:] + "-more"
    assert context_in([("traceparent", later)]) == {"traceparent": later}


def test_a_record_keeps_the_context_that_it_has() -> None:
    own: list[tuple[str, bytes | None]] = [("traceparent", b"its own")]
    assert with_context(own, {"traceparent": PARENT}) == own
    assert with_context([("a", b"b")], {"traceparent": PARENT}) == [
        ("a", b"b"),
        ("traceparent", PARENT.encode()),
    ]
    assert with_context([], {}) == []


def test_without_opentelemetry_the_context_of_the_parent_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing._find_api.cache_clear()
    try:
        with span("x", "client", {"traceparent": PARENT}, a__b=1) as made:
            made.set("c", 1)
            made.fail("no")
        assert made.context == {"traceparent": PARENT}
        record("y", 0, 1)
    finally:
        tracing._find_api.cache_clear()


def test_without_a_provider_nothing_is_made_and_it_is_seldom_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    asked = mock.Mock(side_effect=trace.ProxyTracerProvider)
    monkeypatch.setattr(trace, "get_tracer_provider", asked)
    now = 1000.0
    monkeypatch.setattr(tracing, "_none_until", 0.0)
    monkeypatch.setattr("time.monotonic", lambda: now)
    for _ in range(3):
        with span("x", "client", {"traceparent": PARENT}) as made:
            pass
        assert made.context == {"traceparent": PARENT}
    assert asked.call_count == 1
    now += 1
    record("y", 0, 1)
    assert asked.call_count == 2


def test_a_span_continues_the_trace_of_its_parent(spans: Any) -> None:
    with span("outer", "server", {"traceparent": PARENT, "tracestate": "a=b"}, x__y=1) as outer:
        outer.set("z", True)
        with span("inner") as inner:
            pass
    inside, outside = spans()["inner"], spans()["outer"]
    assert (outside.name, outside.kind.name) == ("outer", "SERVER")
    assert dict(outside.attributes) == {"x.y": 1, "z": True}
    assert f"{outside.parent.span_id:016x}" == PARENT[36:52]
    assert outer.context["traceparent"][:36] == PARENT[:36]
    assert outer.context["traceparent"][36:52] == f"{outside.context.span_id:016x}"
    assert outer.context["tracestate"] == "a=b"
    assert inside.parent.span_id == outside.context.span_id
    assert inner.context["traceparent"][:36] == PARENT[:36]


def test_a_span_without_a_parent_is_of_a_new_trace(spans: Any) -> None:
    with span("outer"), span("inner", "client", {}):
        pass
    inside, outside = spans()["inner"], spans()["outer"]
    assert inside.parent is None
    assert inside.context.trace_id != outside.context.trace_id


def test_a_failure_is_recorded(spans: Any) -> None:
    with pytest.raises(ValueError, match="broken"), span("x"):
        raise ValueError("broken")
    with span("y") as made:
        made.fail("refused")
    raised, failed = spans()["x"], spans()["y"]
    assert raised.status.status_code.name == "ERROR"
    assert (failed.status.status_code.name, failed.status.description) == ("ERROR", "refused")


def test_work_that_has_ended_is_recorded_with_its_times(spans: Any) -> None:
    record("batch", 1_000, 2_000, rows=3)
    found = spans()["batch"]
    assert (found.start_time, found.end_time) == (1_000, 2_000)
    assert dict(found.attributes) == {"rows": 3}


def test_a_batch_of_a_pipeline_is_a_span_with_its_times(spans: Any) -> None:
    report = {
        "name": "flights.delays",
        "timestamp": "2026-01-01T00:00:00.500Z",
        "batchDuration": 250,
        "batchId": 7,
        "numInputRows": 12,
    }
    trace_batch(report)
    trace_batch({"name": "other"})  # of another version of Spark
    assert list(spans()) == ["batch flights.delays"]
    found = spans()["batch flights.delays"]
    assert found.start_time == 1_767_225_600_500_000_000
    assert found.end_time - found.start_time == 250_000_000
    assert found.attributes["messaging.batch.message_count"] == 12
