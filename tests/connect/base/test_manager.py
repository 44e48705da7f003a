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

ORDER = ("v/command/start", b"{}")
DONE = ("v/command/start", None)


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

    async def look(*records: tuple[str, bytes | None]) -> int:
        for key, value in records:
            board.apply(key.encode(), value)
        manager._reconcile()
        for _ in range(3):  # what was stopped ends
            await asyncio.sleep(0)
        return len(begun)

    def own() -> tuple[str, bytes]:
        return ("v/claim", writer.claim.call_args.args[1].encode())

    other = ("v/claim", b"other:1 claim")
    assert await look(("v/definition", b"definition")) == 1
    assert await look(own(), ORDER, other) == 1  # both workers hear it, and the other one begins
    assert await look() == 1
    assert await look(DONE) == 1  # the other worker has carried it out
    assert await look(ORDER) == 2
    assert await look(own(), other) == 2
    assert await look(ORDER, DONE) == 3  # the other worker was faster
    await look(own(), other, ORDER)  # the order came later than the other one has begun
    assert await look() == 4
    assert await look(own(), DONE) == 4
    begun[-1].stop()
