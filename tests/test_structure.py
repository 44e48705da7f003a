"""The size of functions. ``lint-imports`` checks the imports."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
MODULES = sorted(SRC.rglob("*.py"))

FUNCTION_LINES = 60


def test_no_function_is_too_long() -> None:
    long = {
        f"{path.relative_to(SRC)}:{node.name}": lines
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}
