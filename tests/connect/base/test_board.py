"""A topic of definitions can have anything: other programs write it too."""

from __future__ import annotations

import pytest

from tidemill.connect.base.board import Board
from tidemill.connect.cdc.definition import Definition as Source
from tidemill.connect.direct.definition import Definition as Bridge
from tidemill.connect.webhooks.definition import Webhook
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
