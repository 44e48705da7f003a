"""Metrics of sources, bridges, webhooks and queries come from the statuses that are published."""

from __future__ import annotations

from typing import Any

from tidemill.connect.base.runs import Runs
from tidemill.connect.cdc.metrics import add_sources
from tidemill.connect.cdc.runner import SourceStatus
from tidemill.connect.direct.metrics import add_bridges
from tidemill.connect.webhooks.errors import PermanentWebhookError, WebhookError
from tidemill.connect.webhooks.metrics import add_webhooks
from tidemill.metrics.registry import Registry
from tidemill.spark.pipelines.metrics import add_queries
from tidemill.spark.pipelines.progress import QueryStatus
from tidemill.spark.pipelines.progress import SourceStatus as Read


def samples(registry: Registry) -> dict[tuple[str, ...], float]:
    return {
        (each.name, *(value for _, value in each.labels)): each.value for each in registry.samples()
    }


def test_a_source_has_its_lag_and_what_is_unknown_is_left_out() -> None:
    registry = Registry()
    status = SourceStatus("shop", "sqlite", "running", 0, lag_ms=1500, written=7, dead_letters=1)
    add_sources(registry, lambda: {"shop": status.values()})
    assert samples(registry) == {
        ("tidemill_source_phase", "shop", "running"): 1,
        ("tidemill_source_records_total", "shop"): 7,
        ("tidemill_source_lag_seconds", "shop"): 1.5,
        ("tidemill_source_dead_letters_total", "shop"): 1,
        ("tidemill_source_failures", "shop"): 0,
    }


def test_a_webhook_that_waits_for_its_broker_has_no_figures() -> None:
    registry = Registry()
    waiting = Runs(PermanentWebhookError)
    waiting.begin()
    for _ in range(3):
        waiting.fail(WebhookError("no answer"))
    status: dict[str, Any] = {"phase": "running", "failures": 0, "delivered": 5, "lag": None}
    add_webhooks(registry, lambda: {"a": status, "b": waiting.status()})
    assert samples(registry) == {
        ("tidemill_webhook_phase", "a", "running"): 1,
        ("tidemill_webhook_phase", "b", "waiting"): 1,
        ("tidemill_webhook_delivered_total", "a"): 5,
        ("tidemill_webhook_failures", "a"): 0,
        ("tidemill_webhook_failures", "b"): 3,
    }


def test_a_status_that_changes_is_read_at_each_scrape() -> None:
    registry, statuses = Registry(), dict[str, dict[str, Any]]()
    add_bridges(registry, lambda: statuses)
    assert samples(registry) == {}
    statuses["b"] = {"phase": "running", "received": 1}
    statuses["c"] = {}
    assert samples(registry)["tidemill_bridge_received_total", "b"] == 1
    assert samples(registry)["tidemill_bridge_phase", "c", ""] == 1


def test_a_query_has_rows_lag_and_latency() -> None:
    registry = Registry()
    status = QueryStatus(
        "flights",
        "delays",
        "running",
        rows=100,
        batch_ms=250,
        latency_p50_ms=40,
        state_rows=None,
        watermark="2013-03-08T12:00:00.000Z",
        sources=(Read("events", lag=3), Read("unknown")),
    )
    add_queries(registry, lambda: {"delays": status})
    found = samples(registry)
    query = ("flights", "delays")
    assert found["tidemill_query_state", *query, "running"] == 1
    assert found["tidemill_query_rows_total", *query] == 100
    assert found["tidemill_query_batch_seconds", *query] == 0.25
    assert found["tidemill_query_latency_p50_seconds", *query] == 0.04
    assert found["tidemill_query_lag_records", *query, "events"] == 3
    assert found["tidemill_query_watermark_timestamp_seconds", *query] == 1_362_744_000
    assert ("tidemill_query_lag_records", *query, "unknown") not in found
    assert ("tidemill_query_state_rows", *query) not in found
