"""``examples/dual_writes`` shows that direct writes disagree and that capture does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

PROGRAM = Path(__file__).parents[2] / "examples" / "dual_writes" / "dual_writes.py"


@pytest.mark.slow
def test_direct_writes_differ_and_capture_agrees(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "-b", broker.bootstrap],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    direct, captured = (int(each) for each in re.findall(r"(\d+) of 100 articles", done.stdout))
    assert direct > 0
    assert captured == 0
    delay = re.search(r"p50 (\d+) ms, p99 (\d+) ms", done.stdout)
    assert delay is not None
    assert int(delay[1]) < 5_000, done.stdout
