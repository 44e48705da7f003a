"""A topic of definitions can have anything: other programs write it too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.connect.base.board import Board
from tidemill.connect.base.orders import describe
from tidemill.connect.cdc.definition import Definition as Source
from tidemill.connect.direct.definition import Definition as Bridge
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.intake import Position
from tidemill.errors import TidemillError

DEEP = b'{"a":' * 100_000


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"7", DEEP])
def test_a_status_or_a_command_that_is_not_one_is_left_out(value: bytes) -> None:
    board = Board()
    board.apply(b"a/status", b'{"phase": "running"}')
    board.apply(b"b/status", value)
    board.apply(b"b/command/pause", value)
    assert board.statuses == {"a": {"phase": "running"}}
    assert board.commands == {"b": {}}


@pytest.mark.parametrize("kind", [Source, Bridge, Webhook])
def test_a_definition_that_is_nested_too_deeply_is_invalid(
    kind: type[Source] | type[Bridge] | type[Webhook],
) -> None:
    with pytest.raises(TidemillError, match="is not JSON"):
        kind.decode(DEEP)


@pytest.mark.parametrize("kind", [Source, Bridge, Webhook])
def test_a_file_that_is_nested_too_deeply_is_invalid(
    kind: type[Source] | type[Bridge] | type[Webhook], tmp_path: Path
) -> None:
    file = tmp_path / "deep.toml"
    file.write_text("name = " + "[" * 100_000)
    with pytest.raises(TidemillError, match="is not valid TOML"):
        kind.read_file(file)


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"7", DEEP])
def test_a_definition_that_is_invalid_can_be_described(value: bytes) -> None:
    board = Board()
    board.apply(b"a/definition", value)
    assert describe(board, "a").definition == {}


@pytest.mark.parametrize("metadata", [None, "", "[]", "{}", "[" * 4000, '{"failing_since": 1e999}'])
def test_positions_that_another_program_has_committed_have_no_attempts(
    metadata: str | None,
) -> None:
    assert Position.of(7, metadata) == Position(7)
