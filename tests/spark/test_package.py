"""The public names of ``tidemill.spark``, and the modules that need neither Spark nor Kafka."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import tidemill.spark
from tidemill.spark.tables.changelog import ChangelogTopic

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
_CODE = re.compile(r"^```(\w*).*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CONTINUATION = re.compile(r"^> ?", re.MULTILINE)
"""Before each line of a file that a shell command writes."""


def run(program: str) -> str:
    """Return what a program prints in a new Python process."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout


def imports_in(source: str) -> Iterator[str]:
    """Yield the imports of ``tidemill`` in a piece of text, each as one statement."""
    for match in re.finditer(
        r"^[ ]*(from tidemill[\w.]* import (\([^)]*\)|.*)|import tidemill[\w.]*)",
        source,
        re.MULTILINE,
    ):
        yield ast.unparse(ast.parse(match[1].split("#")[0].strip()))


def documented_imports() -> list[tuple[str, str]]:
    """Return all imports of ``tidemill`` in the docs, the README and the examples."""
    found: dict[str, str] = {}
    for page in PAGES:
        for code in _CODE.finditer(page.read_text()):
            for statement in imports_in(_CONTINUATION.sub("", code[2])):
                found.setdefault(statement, page.name)
    for example in EXAMPLES:
        for statement in imports_in(example.read_text()):
            found.setdefault(statement, example.name)
    return [(place, statement) for statement, place in found.items()]


IMPORTS = documented_imports()


@pytest.mark.parametrize(("place", "statement"), IMPORTS, ids=[s for _, s in IMPORTS])
def test_documented_imports_work(place: str, statement: str) -> None:
    exec(statement, {})


def test_imports_are_found_in_the_docs() -> None:
    assert len(IMPORTS) >= 8
    assert any(place == "README.md" for place, _ in IMPORTS)


@pytest.mark.parametrize(("place", "statement"), IMPORTS, ids=[s for _, s in IMPORTS])
def test_documented_imports_use_the_package_and_not_its_modules(place: str, statement: str) -> None:
    [node] = ast.parse(statement).body
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidemill.spark"):
        assert node.module in ("tidemill.spark", "tidemill.spark.errors"), place


@pytest.mark.parametrize("name", tidemill.spark.__all__)
def test_public_names_load_and_have_docstrings(name: str) -> None:
    importlib.import_module("tidemill.spark.joins.enrich")
    importlib.import_module("tidemill.spark.datasource.session")
    found = getattr(tidemill.spark, name)
    assert callable(found)
    assert found.__name__ == name
    assert len(inspect.cleandoc(found.__doc__ or "")) > 20
    if inspect.isfunction(found):
        parameters = [each for each in inspect.signature(found).parameters if each != "options"]
        missing = [each for each in parameters if f"    {each}: " not in (found.__doc__ or "")]
        assert not missing


def test_the_package_has_no_other_names() -> None:
    assert "Pipeline" in dir(tidemill.spark)
    with pytest.raises(AttributeError, match="has no attribute 'Pipelin'"):
        _ = tidemill.spark.Pipelin


@pytest.mark.parametrize("group", ["tidemill.sinks", "tidemill.table_sources"])
def test_other_packages_add_names_by_entry_points(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = EntryPoint("OtherTable", "tidemill.spark.tables.changelog:ChangelogTopic", group)
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda **wanted: EntryPoints([added]).select(**wanted),
    )

    assert tidemill.spark.OtherTable is ChangelogTopic
    with pytest.raises(AttributeError):
        _ = tidemill.spark.AnotherTable


@pytest.mark.parametrize(
    ("names", "needs_spark"),
    [
        ("Pipeline, TopicSink, ChangelogSink, SqliteSink, ChangelogTopic, TableSource", False),
        ("tumbling", True),
    ],
)
def test_a_name_loads_spark_only_if_it_needs_it(names: str, needs_spark: bool) -> None:
    program = f"import sys; from tidemill.spark import {names}; print('pyspark' in sys.modules)"

    assert run(program) == f"{needs_spark}\n"


@pytest.mark.parametrize("module", ["declared", "check", "supervisor", "sql", "progress"])
def test_declaring_checking_and_supervising_load_neither_spark_nor_a_client(module: str) -> None:
    program = (
        f"import sys; import tidemill.spark.pipelines.{module}; "
        "print({'pyspark', 'py4j', 'confluent_kafka'} & set(sys.modules))"
    )

    assert run(program) == "set()\n"


def test_statuses_are_read_without_spark() -> None:
    program = (
        "import sys; import tidemill.spark.pipelines.status_topic; "
        "print({'pyspark', 'py4j'} & set(sys.modules))"
    )

    assert run(program) == "set()\n"
