"""What is kept for a short time, and what waits for its turn."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.errors import UnreachableError
from tidemill.gateway.errors import HttpError
from tidemill.gateway.guard import Turns
from tidemill.gateway.kept import Kept


class Reads:
    """Counts reads; the first ``failures`` of them fail."""

    def __init__(self, failures: int = 0) -> None:
        self.count = 0
        self._failures = failures

    def __call__(self) -> int:
        self.count += 1
        if self.count <= self._failures:
            raise UnreachableError("no answer")
        return self.count


async def test_looks_at_the_same_time_share_one_read() -> None:
    kept = Kept(60.0, Reads())
    assert await asyncio.gather(*(kept.get() for _ in range(50))) == [1] * 50


async def test_a_value_is_read_again_when_it_has_expired() -> None:
    kept = Kept(60.0, Reads())
    assert await kept.get() == 1
    kept.expire()
    assert [await kept.get(), await kept.get()] == [2, 2]
    kept.keep(9)
    assert await kept.get() == 9
    brief = Kept(-1.0, Reads())
    assert [await brief.get(), await brief.get()] == [1, 2]


@pytest.mark.parametrize(("longer_s", "seen"), [(60.0, [1, 1]), (-2.0, [1, 2])])
async def test_a_value_is_kept_longer_for_the_time_that_it_took(
    longer_s: float, seen: list[int]
) -> None:
    took: list[float] = []

    def longer(took_s: float) -> float:
        took.append(took_s)
        return longer_s

    kept = Kept(-1.0, Reads(), longer)
    assert [await kept.get(), await kept.get()] == seen
    assert len(took) == seen[-1]
    assert 0 <= min(took) <= max(took) < 60


async def test_an_error_is_not_kept() -> None:
    kept = Kept(60.0, Reads(failures=1))
    with pytest.raises(UnreachableError):
        await kept.get()
    assert await kept.get() == 2


async def test_a_few_have_their_turn_and_too_many_are_refused() -> None:
    turns = Turns(2, 5, "looks")
    running: list[int] = []
    may_end = asyncio.Event()

    async def look(number: int) -> None:
        async with turns.turn():
            running.append(number)
            assert len(running) <= 2
            await may_end.wait()
            running.remove(number)

    looks = [asyncio.ensure_future(look(number)) for number in range(5)]
    while len(running) < 2:
        await asyncio.sleep(0)
    with pytest.raises(HttpError, match="too many looks") as refused:
        await look(5)
    assert refused.value.status == 503
    looks[4].cancel()  # one that waits makes room
    await asyncio.wait([looks[4]])
    looks[4] = asyncio.ensure_future(look(4))
    may_end.set()
    await asyncio.gather(*looks)
