"""The scheduler of ``tests/support/lanes.py`` chooses units as documented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import lanes

pytest_plugins = ["pytester"]

DURATIONS = {"a.py": 10.0, "b.py": 30.0, "s.py (spark)": 40.0, "t.py (spark)": 5.0}


@pytest.mark.parametrize(
    ("waiting", "is_spark_worker", "chosen"),
    [
        (["a.py", "b.py", "s.py (spark)"], True, "s.py (spark)"),
        (["a.py", "b.py", "s.py (spark)"], False, "b.py"),
        (["a.py", "b.py"], True, "b.py"),
        (["s.py (spark)", "t.py (spark)"], False, "s.py (spark)"),
        (["t.py (spark)"], False, None),
        (["t.py (spark)"], True, "t.py (spark)"),
        ([], True, None),
        (["new.py", "a.py"], False, "a.py"),
    ],
    ids=[
        "the Spark worker begins with its lane",
        "another worker begins with the longest file",
        "the Spark worker helps when its lane is empty",
        "another worker helps if a JVM is worth its start",
        "another worker does not start a JVM for a few seconds",
        "the Spark worker runs what is left",
        "nothing is left",
        "an unknown file has a default",
    ],
)
def test_a_worker_gets_the_longest_unit_of_its_lane(
    waiting: list[str], is_spark_worker: bool, chosen: str | None
) -> None:
    assert lanes.choose(waiting, DURATIONS, is_spark_worker=is_spark_worker) == chosen


def test_recorded_durations_replace_old_ones_and_drop_files_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    path = tmp_path / "durations.json"
    path.write_text(json.dumps({"a.py": 1.0, "gone.py": 2.0, "a.py (spark)": 3.0}))

    lanes.record({"a.py": 4.04, "a.py::test_one": 5.0}, tmp_path, path)

    expected = {"a.py": 4.0, "a.py (spark)": 3.0, "a.py::test_one": 5.0}
    assert lanes.load_durations(path) == expected


def test_fast_tests_that_take_long_are_named_and_others_are_not() -> None:
    seconds = {"quick": 0.1, "late": 4.0, "later": 9.0, "slow": 60.0}
    assert lanes.not_fast(seconds, ["quick", "late", "later"]) == [("later", 9.0), ("late", 4.0)]


def test_the_files_of_a_folder_with_a_server_are_one_unit() -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

        def get_closest_marker(self, name: str) -> None:
            return None

    def unit(nodeid: str) -> str:
        return lanes.unit_of(Item(nodeid))  # type: ignore[arg-type]

    root = lanes.DURATIONS.parents[2]
    for folder in lanes.SHARED:
        files = sorted((root / folder).glob("test_*.py"))
        assert {unit(f"{folder}/{file.name}::test_one") for file in files} == {folder}
        assert len(files) > 1
    assert unit("tests/connect/cdc/test_worker.py::test_one") == "tests/connect/cdc/test_worker.py"


@pytest.mark.slow
def test_all_tests_with_the_shared_session_run_in_one_worker(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makeconftest(
        f"""
        import sys
        sys.path.insert(0, {str(lanes.DURATIONS.parents[2])!r})
        pytest_plugins = ["tests.support.lanes"]
        import pytest

        @pytest.fixture(scope="session")
        def spark():
            return None
        """
    )
    pytester.makeini("[pytest]\nmarkers = separate: is scheduled on its own")
    body = """
        import os, pathlib, pytest

        def note(name):
            with pathlib.Path("ran").open("a") as file:
                file.write(f"{name} {os.environ['PYTEST_XDIST_WORKER']}\\n")

        def test_spark(spark): note("spark")
        def test_plain(): note("plain")

        @pytest.mark.separate
        @pytest.mark.parametrize("number", range(3))
        def test_separate(number): note("separate")
        """
    pytester.makepyfile(**{f"test_{number}": body for number in range(4)})

    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=20)
    ran = [line.split() for line in (pytester.path / "ran").read_text().splitlines()]
    assert {worker for name, worker in ran if name == "spark"} == {"gw0"}
    assert len([name for name, _ in ran if name == "separate"]) == 12
