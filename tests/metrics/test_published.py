"""Metrics as a record: what is written comes back, and what any program writes does no harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.metrics import published
from tidemill.metrics.definition import Metric
from tidemill.metrics.published import (
    LOST_AFTER_MS,
    MOST_ROWS,
    Published,
    decode,
    encode,
    merged,
    without_replaced,
)
from tidemill.metrics.registry import Registry
from tidemill.metrics.text import PROMETHEUS, write

SEEN = Metric("test_seen_total", "counter", "Seen.", ("who",))
DEPTH = Metric("test_depth", "gauge", "Depth.")
TOOK = Metric("test_took_seconds", "histogram", "Took.", ("what",), (0.1, 1.0))
NOW = 1_700_000_000_000


def registry() -> Registry:
    made = Registry()
    made.counter(SEEN, "a").value = 3
    made.gauge(DEPTH).value = float("inf")
    made.histogram(TOOK, "x").observe(0.5, 2)
    return made


def page(*processes: Published, now_ms: int = NOW) -> str:
    return "".join(write(merged(processes, now_ms), PROMETHEUS))


def record(**metric: Any) -> bytes:
    valid = {"name": "a", "type": "gauge", "help": "A.", "labels": ["x"], "rows": [[["y"], 1]]}
    metrics = [valid | metric]
    return json.dumps({"worker": "w", "process": "p", "at_ms": NOW, "metrics": metrics}).encode()


def test_what_is_written_comes_back_with_the_process_as_labels() -> None:
    found = decode(encode(registry(), "sources", "host:1", NOW))
    assert found is not None
    assert found.key == "sources@host:1"
    shown = page(found)
    own = 'worker="sources",process="host:1"'
    assert f'test_seen_total{{{own},who="a"}} 3\n' in shown
    assert f"test_depth{{{own}}} +Inf\n" in shown
    assert f'test_took_seconds_bucket{{{own},what="x",le="0.1"}} 0\n' in shown
    assert f'test_took_seconds_count{{{own},what="x"}} 2\n' in shown


def test_a_process_that_publishes_no_more_is_not_shown() -> None:
    found = decode(encode(registry(), "sources", "host:1", NOW))
    assert found is not None
    assert page(found, now_ms=NOW + LOST_AFTER_MS)
    assert page(found, now_ms=NOW + LOST_AFTER_MS + 1) == ""


def test_a_process_that_the_broker_started_again_replaces_the_one_before() -> None:
    def process(name: str, at_ms: int, supervised: str) -> Published:
        found = decode(encode(registry(), "sources", name, at_ms, supervised))
        assert found is not None
        return found

    killed = process("host:1", NOW - 9_000, "sources")
    replacement = process("host:2", NOW, "sources")
    elsewhere = process("other:1", NOW - 9_000, "sources")
    alone = process("host:3", NOW - 9_000, "")
    beside = process("host:4", NOW, "")
    given = [killed, replacement, elsewhere, alone, beside]
    assert without_replaced(given) == [replacement, elsewhere, alone, beside]
    assert without_replaced([killed]) == [killed]


def test_the_series_of_a_metric_stand_together_and_a_different_declaration_is_left_out() -> None:
    one = decode(record(name="a"))
    two = decode(record(name="a").replace(b'"p"', b'"q"'))
    other = decode(record(name="a", type="counter").replace(b'"p"', b'"r"'))
    assert one
    assert two
    assert other
    shown = page(one, two, other, one)
    assert shown.count("# TYPE") == 1
    assert shown.count("\na{") == 2


@pytest.mark.parametrize(
    "metric",
    [
        {"name": "a b"},
        {"name": 'a{x="1"} 1\nb'},
        {"name": None},
        {"type": "summary"},
        {"type": []},
        {"help": 5},
        {"help": "x" * 10_000},
        {"labels": ["x", "x"]},
        {"labels": ["le"]},
        {"labels": ["worker"]},
        {"labels": ["x\n"]},
        {"labels": 7},
        {"rows": 7},
        {"rows": [[["y"]]]},
        {"rows": [[["y", "z"], 1]]},
        {"rows": [[[["y"]], 1]]},
        {"rows": [[["y"], "many"]]},
        {"rows": [[["y"], None]]},
        {"rows": [[["y"], {}]]},
        {"type": "histogram"},
        {"type": "histogram", "rows": [[["y"], {"bounds": [1], "counts": [1], "sum": 1}]]},
        {"type": "histogram", "rows": [[["y"], {"bounds": [2, 1], "counts": [1, 1, 1], "sum": 1}]]},
        {"type": "histogram", "rows": [[["y"], {"bounds": ["1"], "counts": [1, 1], "sum": 1}]]},
        {"type": "histogram", "rows": [[["y"], {"bounds": [1], "counts": [-1, 1], "sum": 1}]]},
        {"type": "histogram", "rows": [[["y"], {"bounds": [1], "counts": [1, 1], "sum": "x"}]]},
    ],
)
def test_what_is_invalid_is_left_out(metric: dict[str, Any]) -> None:
    found = decode(record(**metric))
    assert found is not None
    assert "\na{" not in page(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["worker", "process", "at_ms", "metrics", "name", "type", "rows", "sum"]
            ),
            each,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.binary(max_size=50) | JSON.map(lambda each: json.dumps(each).encode()))
def test_any_bytes_are_metrics_or_nothing(data: bytes) -> None:
    found = decode(data)
    if found is not None:
        page(found)


@given(JSON, JSON, JSON)
def test_any_values_in_a_metric_are_shown_or_left_out(name: Any, labels: Any, rows: Any) -> None:
    found = decode(record(name=name, labels=labels, rows=rows))
    assert found is not None
    page(found)


def test_a_million_rows_are_bounded() -> None:
    rows = [[[str(number)], number] for number in range(MOST_ROWS + 500)]
    found = decode(record(rows=rows))
    assert found is not None
    assert page(found).count("\na{") == MOST_ROWS
    assert decode(b" " * (2 * published.MOST_BYTES + 1)) is None
    assert decode(b"[" * 100_000) is None


def test_a_record_is_cut_where_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MOST_BYTES", 120)
    data = encode(registry(), "sources", "host:1", NOW)
    found = decode(data)
    assert found is not None
    assert [metric.name for metric, _ in found.families] == ["test_seen_total"]
