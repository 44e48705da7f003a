"""``docs/operations.md`` explains every log event of the broker."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
ROOMS = (
    *("engine", "net", "protocols", "state", "log", "cli", "workers", "gateway"),
    *("connect/base", "connect/direct", "connect/webhooks", "connect/alerts", "confluent"),
    "sql/views",
)
"""Folders whose code logs with structlog. Code in ``spark`` logs texts with ``logging``."""
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
LOGGERS = ("log", "logger", "_log", "_logger")


def events() -> Iterator[tuple[str, str]]:
    """Yield each event's name and level."""
    for room in ROOMS:
        for path in sorted((ROOT / "src" / "tidemill" / room).rglob("*.py")):
            yield from _events_of(ast.parse(path.read_text()), path)


def _events_of(tree: ast.AST, path: Path) -> Iterator[tuple[str, str]]:
    texts = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr=level), args=[event, *_]
            ) if name in LOGGERS and level in LEVELS:
                if isinstance(event, ast.Name):
                    event = texts[event.id]
                found = [
                    each.value
                    for each in ast.walk(_without_condition(event))
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                assert found, f"{path}:{node.lineno}: the event is not a constant text"
                yield from ((each, level) for each in found)


def _without_condition(event: ast.expr) -> ast.expr:
    if isinstance(event, ast.IfExp):
        return ast.Tuple(elts=[event.body, event.orelse])
    return event


@pytest.fixture(scope="module")
def found() -> list[tuple[str, str]]:
    """Not a parameter of the tests: each process that collects them would read all sources."""
    return sorted(set(events()))


def test_the_events_are_found(found: list[tuple[str, str]]) -> None:
    assert ("ready", "info") in found
    assert ("log.repaired", "warning") in found
    assert ("transaction.orphan_aborted", "warning") in found
    assert len(found) > 20


def test_every_event_is_documented_with_its_level(found: list[tuple[str, str]]) -> None:
    page = PAGE.read_text()
    missing, wrong = [], []
    for event, level in found:
        row = re.search(rf"^\| `{re.escape(event)}` \| (\w+) \| (.*) \|$", page, re.M)
        if row is None:
            missing.append(event)
        elif level not in row[1] and f"level is {level}" not in row[2]:
            wrong.append((event, level))
    assert not missing, f"docs/operations.md has no row for the log events {missing}"
    assert not wrong, f"docs/operations.md has another level than the code for {wrong}"


def test_no_documented_event_is_gone(found: list[tuple[str, str]]) -> None:
    documented = re.findall(
        r"^\| `([^`]+)` \| (?:info|warning|error|critical) \|", PAGE.read_text(), re.M
    )
    assert sorted(set(documented) - {event for event, _ in found}) == []
