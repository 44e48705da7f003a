"""What a manager keeps when several workers share definitions, without a broker."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.connect.base import manager as manager_module
from tidemill.connect.base.board import Board
from tidemill.connect.base.manager import Manager

ORDER = {"start": {"at": 1}}


class _Keeper:
    """Works until it is stopped."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def order(self, commands: object) -> None: ...

    def take_finished(self, writer: object) -> list[str]:
        return []

    def status(self) -> dict[str, Any]:
        return {}


async def test_a_definition_that_was_taken_over_begins_again_for_an_order_and_not_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = Board()
    writer = Mock()
    monkeypatch.setattr(manager_module, "BoardFollower", lambda *_: Mock(board=board))
    monkeypatch.setattr(manager_module, "BoardWriter", lambda *_: writer)
    begun: list[_Keeper] = []

    def keep(*_: object) -> _Keeper:
        begun.append(_Keeper())
        return begun[-1]

    manager = Manager(
        Kafka("127.0.0.1:1"), "t", "view", lambda _: Mock(managed=True), keep, exclusive=True
    )

    async def look() -> int:
        manager._reconcile()
        for _ in range(3):  # what was stopped ends
            await asyncio.sleep(0)
        return len(begun)

    board.definitions["v"] = b"definition"
    assert await look() == 1
    board.commands["v"] = {**ORDER}  # both workers hear it, and the other one begins
    board.claims["v"] = [writer.claim.call_args.args[1], "other:1 claim"]
    assert await look() == 1
    assert await look() == 1
    del board.commands["v"]  # the other worker has carried it out
    assert await look() == 1
    board.commands["v"] = {**ORDER}
    assert await look() == 2
    begun[-1].stop()
