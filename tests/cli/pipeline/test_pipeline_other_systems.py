"""A pipeline and its Python workers without what only Linux has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.other_system import hide_linux

FILE = """\
from tidemill.spark import Pipeline, TopicSink

p = Pipeline("elsewhere")
p.stream("numbers", topic="TOPIC", schema="id INT", dead_letters=None)


@p.query(sink=TopicSink("TOPIC.large", key="id"))
def large(numbers):
    return numbers.df.filter("id > 1")
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_runs_without_linux(tidemill: CommandLine, topic: str, tmp_path: Path) -> None:
    (tidemill.folder / "elsewhere.py").write_text(FILE.replace("TOPIC", topic))
    tidemill.ok("topic", "create", topic)
    rows = "\n".join(json.dumps({"id": each}) for each in (1, 2, 3))
    tidemill.ok("topic", "produce", topic, stdin=rows)
    env = {**tidemill.env, **hide_linux(tmp_path / "hidden", tidemill.env)}
    run = ("pipeline", "run", "elsewhere.py", "--data-dir", "data", "--until-caught-up")
    done = subprocess.run(
        tidemill.command(*run), env=env, cwd=tidemill.folder, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    found = tidemill.records(f"{topic}.large", "--from", "beginning", "--until-end")
    assert [each["key"] for each in found] == ["2", "3"]
