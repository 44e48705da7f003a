"""The C code of StatsD with mutated packets, under the sanitizers of addresses and behaviour."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.effort import IS_NIGHTLY, chosen_seed

NATIVE = Path(__file__).parents[3] / "src" / "native"
SECONDS = 600 if IS_NIGHTLY else 2


def test_mutated_packets_find_nothing_under_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = tmp_path / "fuzz"
    build = subprocess.run(
        [
            *(compiler, "-std=c11", "-O1", "-g", "-fsanitize=address,undefined"),
            *("-fno-sanitize-recover=all", f"-I{NATIVE}", "-o", str(program)),
            str(Path(__file__).with_name("fuzz.c")),
            *(str(NATIVE / name) for name in ("statsd_lines.c", "statsd_table.c")),
            "-lm",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode and "sanitize" in build.stderr:
        pytest.skip(f"the compiler has no sanitizers: {build.stderr[:200]}")
    assert build.returncode == 0, build.stderr
    seed = chosen_seed(1)
    run = subprocess.run(
        [str(program), str(seed), str(SECONDS)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"seed {seed}: {run.stderr[-4000:]}"
    assert int(run.stdout) > 1000
