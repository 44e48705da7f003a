"""Programs of FastStream, quixstreams and Faust, as the guide has them.

Each is in an environment of its own, so that none decides the versions of another one, or of
tidemill. It needs the package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.processes import ServerProcess
from tests.support.topics import write
from tidemill import sql

GUIDE = Path(__file__).parents[2] / "docs" / "guide-python.md"
RECIPES = [
    ("with_faststream.py", ["faststream[confluent]"], [], "expensive.faststream"),
    ("with_quixstreams.py", ["quixstreams"], [], "expensive.quix"),
    ("with_faust.py", ["faust-streaming"], ["worker"], "expensive.faust"),
]


def program_of(name: str) -> str:
    """Return a program of the guide."""
    found = re.search(rf'```python no-run title="{name}"\n(.*?)```', GUIDE.read_text(), re.DOTALL)
    assert found is not None, name
    return found[1]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "packages", "arguments", "target"), RECIPES)
def test_a_program_of_the_guide_runs(
    tmp_path: Path, name: str, packages: list[str], arguments: list[str], target: str
) -> None:
    pytest.importorskip("duckdb", reason="it looks at the result with SQL")
    python = str(tmp_path / "environment" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *packages], check=True, timeout=900)
    with BrokerProcess(tmp_path / "broker") as broker, sql.connect(broker.bootstrap) as connection:
        orders = ((f"k{number}", {"id": number, "price": number}) for number in range(100))
        write(broker.bootstrap, "orders", *orders)
        file = tmp_path / name
        file.write_text(program_of(name).replace("localhost:9092", broker.bootstrap))
        command = [python, str(file), *arguments]
        process = ServerProcess(name, command, tmp_path / "log", cwd=tmp_path)

        def count() -> int:
            if (target,) not in connection.execute("SHOW TABLES").fetchall():
                return 0
            ((found,),) = connection.execute(f'SELECT count(*) FROM "{target}"').fetchall()
            return int(found)

        try:
            process.wait_until(lambda: count() == 69, 120)
            ((least,),) = connection.execute(f'SELECT min(price) FROM "{target}"').fetchall()
            assert least == 31
        finally:
            process.kill()
