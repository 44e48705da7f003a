"""Sinks are found by name, also those of other packages, and no other room asks for their type."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

import tidemill.spark
from tests.spark.sinks.toy_sink import ToySink
from tidemill.spark.errors import PipelineError
from tidemill.spark.sinks import registry
from tidemill.spark.sinks.base import Sink
from tidemill.spark.sinks.registry import sink, sink_names

SRC = Path(__file__).parents[3] / "src"
SPARK = SRC / "tidemill" / "spark"


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points that installed packages seem to have."""
    offered: list[EntryPoint] = []

    def entry_points(**wanted: Any) -> EntryPoints:
        return EntryPoints(offered).select(**wanted)

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return offered


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, registry.GROUP)


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
def test_built_in_sinks_have_the_names_of_their_classes(name: str) -> None:
    found = sink(name)
    assert issubclass(found, Sink)
    assert found.__name__ == name
    assert found is getattr(tidemill.spark, name)


def test_a_sink_of_another_package_is_found_by_its_entry_point(offer: list[EntryPoint]) -> None:
    offer.append(entry("ToySink", "tests.spark.sinks.toy_sink:ToySink"))
    assert sink("ToySink") is ToySink
    assert "ToySink" in sink_names()
    assert set(registry.BUILT_IN) < set(sink_names())


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(offer: list[EntryPoint]) -> None:
    offer.append(entry("ToySink", "tests.spark.sinks.toy_sink:ToySink"))
    with pytest.raises(PipelineError, match="unknown sink 'Toy'") as error:
        sink("Toy")
    assert "SqliteSink, TantivySink, TopicSink, ToySink" in error.value.hint
    assert registry.GROUP in error.value.hint


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:ToySink", r"can't load .*'ToySink'.*ModuleNotFoundError: No module named"),
        ("tests.spark.sinks.toy_sink:NoSuch", r"can't load .*AttributeError"),
        ("tests.spark.sinks.toy_sink:ToyWriter", "is not a subclass of tidemill.spark.sinks.Sink"),
        ("tests.spark.sinks.toy_sink:json", "is not a subclass of tidemill.spark.sinks.Sink"),
    ],
)
def test_a_broken_entry_point_is_an_error_that_names_it(
    offer: list[EntryPoint], value: str, message: str
) -> None:
    offer.append(entry("ToySink", value))
    with pytest.raises(PipelineError, match=message) as error:
        sink("ToySink")
    assert value in str(error.value)
    assert error.value.hint


def test_a_name_that_two_packages_offer_is_an_error(offer: list[EntryPoint]) -> None:
    offer += [entry("ToySink", "one:ToySink"), entry("ToySink", "other:ToySink")]
    with pytest.raises(PipelineError, match="more than one package offers a sink 'ToySink'"):
        sink("ToySink")


def test_declaring_any_sink_needs_neither_spark_nor_a_client_nor_a_database() -> None:
    program = (
        "import sys\n"
        "from tidemill.spark.sinks.registry import sink, sink_names\n"
        "for name in sink_names(): sink(name)\n"
        "heavy = ('pyspark', 'py4j', 'pyarrow', 'confluent_kafka', 'duckdb', 'psycopg')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_no_other_room_asks_for_the_type_of_a_sink() -> None:
    found = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in sorted(SRC.rglob("*.py"))
        if not path.is_relative_to(SPARK / "sinks")
        and "Sink" in (text := path.read_text())  # it takes long to parse all
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("isinstance", "issubclass")
        and any(name.endswith("Sink") for name in _names(node.args[1]))
    ]
    assert found == []


def _names(node: ast.expr) -> list[str]:
    """Names of the classes in the second argument of ``isinstance``."""
    return [
        each.id if isinstance(each, ast.Name) else each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Name | ast.Attribute)
    ]
