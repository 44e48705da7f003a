"""Long work is done in slices, and ends when its client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from tidemill.net.errors import ClientGoneError
from tidemill.net.turns import Turns
from tidemill.net.work import PART_ITEMS, Work


@pytest.fixture
def work() -> Work:
    return Work(Turns())


def test_large_writes_are_written_in_parts_one_after_the_other(work: Work) -> None:
    parts: list[int] = []

    async def write(items: Sequence[int]) -> Sequence[int]:
        parts.append(len(items))
        return [-item for item in items]

    items = range(2 * PART_ITEMS + 1)
    assert asyncio.run(work.in_parts(write, items)) == [-item for item in items]
    assert parts == [PART_ITEMS, PART_ITEMS, 1]


def test_a_write_ends_between_two_parts_when_the_client_is_gone(work: Work) -> None:
    written: list[int] = []

    async def write(items: Sequence[int]) -> Sequence[int]:
        written.extend(items)
        work.is_gone = True
        return items

    async def write_all() -> None:
        await work.in_parts(write, range(3 * PART_ITEMS))

    with pytest.raises(ClientGoneError, match="closed the connection"):
        asyncio.run(write_all())
    assert written == list(range(PART_ITEMS))


def test_those_that_wait_for_a_large_write_end_when_their_clients_are_gone() -> None:
    """Otherwise clients that ask and leave would fill the memory with what they asked for."""
    turns = Turns()
    first, other = Work(turns), Work(turns)
    written: list[str] = []

    async def play() -> list[BaseException | list[int]]:
        async def ask(client: Work, name: str) -> list[int]:
            async def write(items: Sequence[int]) -> Sequence[int]:
                written.append(name)
                other.is_gone = True
                return items

            return await client.in_parts(write, range(2 * PART_ITEMS))

        waiting = [ask(other, "other") for _ in range(100)]
        return await asyncio.gather(ask(first, "first"), *waiting, return_exceptions=True)

    results = asyncio.run(play())
    assert results[0] == list(range(2 * PART_ITEMS))
    assert {type(each) for each in results[1:]} == {ClientGoneError}
    assert written == ["first", "first"]


def test_steps_end_when_the_client_is_gone(work: Work) -> None:
    def steps() -> Iterator[None]:
        work.is_gone = True
        while True:
            yield

    async def take() -> None:
        work.turns.begin_slice(0.0)  # its slice is over
        await work.collect(steps())

    with pytest.raises(ClientGoneError):
        asyncio.run(take())


async def test_what_must_be_done_is_done_although_the_client_is_gone(
    work: Work,
) -> None:
    work.is_gone = True
    await work.turns.pause()
