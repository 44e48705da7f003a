"""What fails is in the file that TEST_FAILURES names, whichever process ran it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = """
import pytest

def test_passes(): pass

def test_fails():
    print("said by the test")
    assert 1 == 2, "the reason"

@pytest.fixture
def broken(): raise OSError("no such thing")

def test_without_its_fixture(broken): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_failures_are_written_as_they_happen(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import missing_module\n")
    path = tmp_path / "failures"
    options = ("-p", "tests.support.failures", "-n", workers, "--continue-on-collection-errors")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        env={**os.environ, "TEST_FAILURES": str(path)},
        capture_output=True,
        check=False,
    )
    written = path.read_text()
    assert "test_some.py::test_fails (call)" in written
    assert "said by the test" in written
    assert "the reason" in written
    assert "test_some.py::test_without_its_fixture (setup)" in written
    assert "no such thing" in written
    assert "missing_module" in written
    assert "test_passes" not in written


UNSTABLE = """
import os, pathlib, pytest

@pytest.mark.parametrize("each", ["a", "b (c)"])
def test_passes_the_second_time(each):
    seen = pathlib.Path(os.environ["SEEN"], each)
    if not seen.exists():
        seen.touch()
        assert 1 == 2, "the reason"

def test_runs_once():
    pathlib.Path(os.environ["SEEN"], "once").open("x")
"""
BROKEN = "def test_fails_always(): assert 1 == 2, 'always'\n"
MAKE = """#!/bin/sh
for given in "$@"; do case $given in ARGS=*) only=${given#ARGS=} ;; esac; done
cd "$TESTS"
exec "$PYTHON" -m pytest -q -p tests.support.failures --rootdir . ${only:-.}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "passes"),
    [
        ({"test_a.py": UNSTABLE}, True),
        ({"test_a.py": UNSTABLE, "test_b.py": BROKEN}, False),
        ({"test_a.py": UNSTABLE, "test_b.py": "import missing_module\n"}, False),
        ({"test_b.py": BROKEN + "".join(f"def test_{n}(): assert 0\n" for n in range(9))}, False),
    ],
    ids=["unstable", "broken", "not collected", "too many"],
)
def test_continuous_integration_runs_a_few_failed_tests_again_and_names_them(
    tmp_path: Path, files: dict[str, str], passes: bool
) -> None:
    for folder in ("tests", "seen", "ci"):
        (tmp_path / folder).mkdir()
    for name, text in files.items():
        (tmp_path / "tests" / name).write_text(text)
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    failures = tmp_path / "ci" / "failures"
    done = subprocess.run(
        [ROOT / "scripts" / "tests-with-second-run.sh", "test"],
        env={
            **os.environ,
            "MAKE": str(make),
            "PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SEEN": str(tmp_path / "seen"),
            "TESTS": str(tmp_path / "tests"),
            "TEST_FAILURES": str(failures),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is passes, done.stdout + done.stderr
    assert "FAILED" in failures.read_text()
    unstable = tmp_path / "ci" / "unstable"
    assert unstable.exists() is passes
    if passes:
        assert unstable.read_text() == (
            "UNSTABLE test: test_a.py::test_passes_the_second_time[a]\n"
            "UNSTABLE test: test_a.py::test_passes_the_second_time[b (c)]\n"
        )
        assert unstable.read_text() in done.stdout
