"""Lists of what boards define: one line each, whatever workers have published."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tidemill.cli import output
from tidemill.cli.boards import Boards
from tidemill.cli.bridge import commands as bridge
from tidemill.cli.source import commands as source
from tidemill.cli.view import commands as view
from tidemill.cli.webhook import commands as webhook
from tidemill.connect.base.board import Board

LISTS: dict[str, Any] = {
    "bridge": bridge.list_bridges,
    "source": source.list_sources,
    "view": view.list_views,
    "webhook": webhook.list_webhooks,
}


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    monkeypatch.setattr(Boards, "kafka", lambda *_: None)
    monkeypatch.setattr(Boards, "read", lambda *_: board)
    return board


@pytest.mark.parametrize("noun", LISTS)
def test_an_empty_list_says_how_one_is_created(
    noun: str, board: Board, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(output, "note", notes.append)
    LISTS[noun]()
    assert capsys.readouterr().out.startswith("NAME")
    way = "CREATE MATERIALIZED VIEW" if noun == "view" else f"tidemill {noun} create FILE"
    assert notes[0].startswith(f"There is no {noun}. Create one: {way}")


@pytest.mark.parametrize("noun", LISTS)
def test_a_definition_without_a_worker_and_one_with_an_error_have_a_line(
    noun: str, board: Board, capsys: pytest.CaptureFixture[str]
) -> None:
    board.definitions = {"a": b"{}", "b": b'{"kind":"k","topic":"t","query":"q"}'}
    now_ms = time.time_ns() // 1_000_000
    board.statuses["b"] = {"phase": "waiting", "updated_ms": now_ms, "error": "no answer"}
    LISTS[noun]()
    title, first, second = capsys.readouterr().out.splitlines()
    assert title.split()[-1] == "ERROR"
    assert first.split()[0] == "a"
    assert "created" in first.split()
    assert second.split()[0] == "b"
    assert second.endswith("no answer")
    LISTS[noun](as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found] == ["a", "b"]
    assert found[1]["error"] == "no answer"
