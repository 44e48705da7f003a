"""Private names of PySpark are used in one module only, which lists all of them."""

from __future__ import annotations

import ast
from pathlib import Path

from tidemill.spark.base import pyspark_private

SPARK = Path(__file__).parents[3] / "src" / "tidemill" / "spark"
HOME = SPARK / "base" / "pyspark_private.py"

PRIVATE = {
    *("_gateway", "_jvm", "_ensure_initialized", "_active_spark_context", "_jsparkSession"),
    *("_jsc", "_jsq", "_jdf", "_jc", "_accumulatorServer"),
}
MODULES = ("pyspark.java_gateway", "pyspark.accumulators", "pyspark.sql.pandas", "pyspark.core")


def test_no_other_module_uses_a_private_name() -> None:
    found = []
    for path in sorted(SPARK.rglob("*.py")):
        if path == HOME:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
                found.append(f"{path.relative_to(SPARK)}:{node.lineno}: {node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(MODULES):
                found.append(f"{path.relative_to(SPARK)}:{node.lineno}: {node.module}")
    assert found == []


def test_each_private_name_is_listed_with_a_reason() -> None:
    listed = pyspark_private.__doc__ or ""
    assert {name for name in PRIVATE if f"{name}``" not in listed} == set()
    assert "pyspark>=4.3,<4.4" in listed


def test_the_connection_file_has_a_port_and_a_secret() -> None:
    content = (4242).to_bytes(4, "big") + (6).to_bytes(4, "big") + b"secret"
    assert pyspark_private.parse_connection(content) == (4242, "secret")
