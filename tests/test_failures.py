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
