"""``docs/operations.md`` explains every log event of the broker."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
ROOMS = ("engine", "net", "protocols", "state", "log", "cli")
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


EVENTS = sorted(set(events()))


def test_the_events_are_found() -> None:
    assert ("ready", "info") in EVENTS
    assert ("log.repaired", "warning") in EVENTS
    assert ("transaction.orphan_aborted", "warning") in EVENTS
    assert len(EVENTS) > 20


@pytest.mark.parametrize(("event", "level"), EVENTS, ids=lambda each: str(each))
def test_every_event_is_documented_with_its_level(event: str, level: str) -> None:
    row = re.search(rf"^\| `{re.escape(event)}` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.M)
    assert row, f"docs/operations.md has no row for the log event {event!r}"
    assert level in row[1] or f"level is {level}" in row[2]


def test_no_documented_event_is_gone() -> None:
    documented = re.findall(
        r"^\| `([^`]+)` \| (?:info|warning|error|critical) \|", PAGE.read_text(), re.M
    )
    assert sorted(set(documented) - {event for event, _ in EVENTS}) == []
