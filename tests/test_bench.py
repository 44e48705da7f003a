"""The benchmark runner runs: each section once, with next to no data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.programs import environment_of

ROOT = Path(__file__).parent.parent
TINY = [
    *("--quick", "--no-kafka", "--rounds", "1", "--megabytes", "2"),
    *("--history-gb", "0.01", "--partitions", "20"),
    *("--events", "2000", "--queries", "q4", "--no-connector"),
]


# Sections that start JVMs, and those that measure for ten seconds and more, take 100 s of processor
# time: they are nightly.
@pytest.mark.slow
@pytest.mark.separate
@pytest.mark.parametrize(
    ("section", "aims"),
    [
        ("throughput", 4),
        ("librdkafka", 0),
        ("latency", 1),
        ("parse", 2),
        pytest.param("eventstore", 3, marks=pytest.mark.nightly),
        pytest.param("sql", 2, marks=pytest.mark.nightly),
        pytest.param(
            *("pipelines-latency", 2),
            marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly],
        ),
        pytest.param(
            *("pipelines-rates", 1),
            marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly],
        ),
        pytest.param(
            *("nexmark", 0),
            marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly],
        ),
        pytest.param(
            *("pipeline-start", 2),
            marks=[pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly],
        ),
        *(
            pytest.param(section, aims, marks=pytest.mark.nightly)
            for section, aims in (
                *(("source", 1), ("memory", 1), ("startup", 1), ("transactions", 0)),
                ("history", 1),
            )
        ),
    ],
)
def test_a_section_measures_and_reports(section: str, aims: int, tmp_path: Path) -> None:
    as_json, as_markdown = tmp_path / "figures.json", tmp_path / "page.md"
    as_markdown.write_text("before\n<!-- bench:begin -->\nYesterday\n<!-- bench:end -->\nafter\n")

    subprocess.run(
        [
            *(sys.executable, "-m", "bench", *TINY, "--only", section),
            *("--dir", tmp_path, "--json", as_json, "--markdown", as_markdown),
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        timeout=800,
    )

    [measured] = json.loads(as_json.read_text())["sections"]
    assert measured["name"] == section
    assert len(measured["aims"]) == aims
    assert all(aim["measured"] > 0 for aim in measured["aims"])
    assert all(table["rows"] for table in measured["tables"])
    page = as_markdown.read_text()
    assert page.startswith("before\n<!-- bench:begin -->\n### Machine\n")
    assert page.endswith("<!-- bench:end -->\nafter\n")
    assert "Yesterday" not in page
    assert not list(tmp_path.glob("tidemill-bench-*"))


@pytest.mark.slow
@pytest.mark.separate
@pytest.mark.nightly
def test_another_checkout_is_compared_with_this_one_and_with_itself(tmp_path: Path) -> None:
    as_json = tmp_path / "figures.json"
    subprocess.run(
        [
            *(sys.executable, "-m", "bench", *TINY, "--only", "latency", "--against", str(ROOT)),
            *("--dir", str(tmp_path), "--json", str(as_json)),
        ],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        timeout=800,
    )
    [section] = json.loads(as_json.read_text())["sections"]
    [table] = section["tables"]
    assert {row[1] for row in table["rows"]} == {"before", "before, again", "now"}
    assert "p50 ms to before" in table["columns"]
    assert len(section["aims"]) == 2


def test_a_folder_that_is_not_a_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a checkout"):
        environment_of(tmp_path)
    (tmp_path / "src" / "tidemill").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"extension of .* is not built"):
        environment_of(tmp_path)
