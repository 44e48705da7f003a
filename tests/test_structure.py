"""The size of files, functions and folders. ``lint-imports`` checks the imports."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
MODULES = sorted(SRC.rglob("*.py"))

FILE_LINES = 450
FUNCTION_LINES = 60
FOLDER_MODULES = 15


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(SRC)): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    long = {
        f"{path.relative_to(SRC)}:{node.name}": lines
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}


def test_no_folder_holds_too_many_modules() -> None:
    sizes = Counter(
        str(path.parent.relative_to(SRC)) for path in MODULES if path.name != "__init__.py"
    )
    assert {folder: size for folder, size in sizes.items() if size > FOLDER_MODULES} == {}
