"""The text for Prometheus: both formats, any label value, pieces, and a bound on its size."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.metrics import text
from tidemill.metrics.definition import Metric
from tidemill.metrics.registry import Family, Histogram

SEEN = Metric("test_seen_total", "counter", "What was\nseen \\ so.", ("who", "what"))
DEPTH = Metric("test_depth", "gauge", "Depth.")
TOOK = Metric("test_took_seconds", "histogram", "Took.", ("what",), (0.1, 1.0))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool of the package prometheus is not installed"
)


def written(families: Iterable[Family], content: str = text.PROMETHEUS) -> str:
    return "".join(text.write(families, content))


def families() -> list[Family]:
    took = Histogram(TOOK.buckets)
    took.observe(0.5)
    return [
        (SEEN, [(("a", "b"), 3), (("c", "d"), 4.5)]),
        (DEPTH, [((), -1)]),
        (TOOK, [(("x",), took)]),
    ]


def test_prometheus_has_the_names_of_samples() -> None:
    assert written(families()) == (
        "# HELP test_seen_total What was\\nseen \\\\ so.\n"
        "# TYPE test_seen_total counter\n"
        'test_seen_total{who="a",what="b"} 3\n'
        'test_seen_total{who="c",what="d"} 4.5\n'
        "# HELP test_depth Depth.\n"
        "# TYPE test_depth gauge\n"
        "test_depth -1\n"
        "# HELP test_took_seconds Took.\n"
        "# TYPE test_took_seconds histogram\n"
        'test_took_seconds_bucket{what="x",le="0.1"} 0\n'
        'test_took_seconds_bucket{what="x",le="1.0"} 1\n'
        'test_took_seconds_bucket{what="x",le="+Inf"} 1\n'
        'test_took_seconds_sum{what="x"} 0.5\n'
        'test_took_seconds_count{what="x"} 1\n'
    )


def test_openmetrics_has_the_name_of_the_family_and_an_end() -> None:
    page = written(families(), text.OPENMETRICS)
    assert "# TYPE test_seen counter\n" in page
    assert 'test_seen_total{who="a",what="b"} 3\n' in page
    assert page.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (True, "1"),
        (2**70, str(2**70)),
        (1e-9, "1e-09"),
    ],
)
def test_numbers_are_written_as_both_formats_have_them(value: float, shown: str) -> None:
    assert written([(DEPTH, [((), value)])]).endswith(f"test_depth {shown}\n")


@given(st.text(), st.text())
def test_any_label_value_comes_back(who: str, what: str) -> None:
    line = written([(SEEN, [((who, what), 1)])]).split("\n", 2)[2]
    found = re.fullmatch(
        r'test_seen_total\{who="((?:[^"\\\n]|\\.)*)",what="((?:[^"\\\n]|\\.)*)"\} 1\n', line
    )
    assert found is not None
    back = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    values = [re.sub(r"\\.", lambda each: back[each[0]], each) for each in found.groups()]
    assert values == [who, what]


def test_a_page_is_cut_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MOST_BYTES", 10_000)
    rows = [((str(number), "x"), number) for number in range(100_000)]
    page = written([(SEEN, rows)])
    assert len(page) < 10_100
    assert page.endswith(text.TRUNCATED)
    assert written([(SEEN, rows)], text.OPENMETRICS).endswith("# EOF\n")


@pytest.mark.parametrize(
    ("accept", "content"),
    [
        ("", text.PROMETHEUS),
        ("*/*", text.PROMETHEUS),
        ("text/html, application/openmetrics-text", text.OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4", text.OPENMETRICS),
        ("application/openmetrics-text; q=0", text.PROMETHEUS),
        (",;,q=,application/openmetrics-textual", text.PROMETHEUS),
    ],
)
def test_the_format_is_what_the_client_accepts(accept: str, content: str) -> None:
    assert text.content_type(accept) == content


@needs_promtool
def test_promtool_accepts_the_text() -> None:
    page = written(
        [
            (SEEN, [(('a "quoted" \\ name\nof lines', "🌊"), 1)]),
            *families()[1:],
        ]
    )
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, text=True, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
