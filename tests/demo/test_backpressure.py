"""``examples/backpressure`` shows the three answers to a producer that outruns a consumer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "backpressure" / "backpressure.py"


@pytest.mark.slow
def test_buffer_keeps_throttle_holds_back_and_drop_loses() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--records", "4000", "--limit", "400", "--rate", "2000"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+) +([\d.]+) s", done.stdout, re.MULTILINE)
    numbers = {name: [float(each.replace(",", "")) for each in rest] for name, *rest in rows}
    (lost, behind, _), buffered_s = numbers["buffer"], numbers["buffer"][2]
    assert lost == 0
    assert behind > 400
    lost, behind, produced_s = numbers["throttle"]
    assert lost == 0
    assert behind < numbers["buffer"][1]
    assert produced_s > buffered_s
    assert numbers["drop"][0] > 0
