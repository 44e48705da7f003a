"""The memory of responses over all connections: shares, turns, and clients that do not read."""

from __future__ import annotations

from functools import partial

from tidemill.net.responses import (
    LEAST_BYTES,
    SLOW_SECONDS,
    STUCK_SECONDS,
    UNCOUNTED_BYTES,
    Client,
    ResponseMemory,
)

MB = LEAST_BYTES


class FakeClient:
    """Has as many unread bytes as the test says."""

    def __init__(self) -> None:
        self.unread_bytes = 0
        self.continued = 0

    def has_read(self) -> None:
        self.continued += 1


class Shortage:
    """Counts the calls of ``on_shortage`` and the turns that were granted."""

    def __init__(self) -> None:
        self.calls = 0
        self.granted: list[str] = []

    def __call__(self) -> None:
        self.calls += 1

    def grant(self, name: str, *, is_there: bool = True) -> bool:
        self.granted.append(name)
        return is_there


def write(memory: ResponseMemory, client: FakeClient, size: int, now: float = 0.0) -> None:
    client.unread_bytes += size
    memory.wrote(client, size, now)


def evicted(memory: ResponseMemory, now: float) -> list[object]:
    found: list[object] = []

    def evict(client: Client, unread: int, seconds: float) -> None:
        found.append(client)

    memory.relieve(now, evict)
    for client in found:
        memory.forget(client)  # type: ignore[arg-type]
    return found


def test_a_response_gets_all_below_half_of_what_is_left_and_a_share_above() -> None:
    memory = ResponseMemory(100 * MB)
    assert memory.share(50 * MB) == 50 * MB
    memory.count(50 * MB)
    assert memory.share(50 * MB) == 25 * MB
    memory.count(49 * MB)
    assert memory.share(50 * MB) == MB
    memory.count(MB)
    assert memory.share(50 * MB) == 0  # one batch


def test_one_response_passes_the_limit_and_the_next_waits_its_turn() -> None:
    shortage = Shortage()
    memory = ResponseMemory(10 * MB, shortage)
    memory.count(10 * MB)
    assert memory.share(3 * MB) is not None
    memory.count(3 * MB)
    assert shortage.calls == 1
    assert memory.share(1) is None
    for name in ("first", "second", "third"):
        memory.wait(3 * MB, partial(shortage.grant, name))
    memory.count(-2 * MB)
    assert shortage.granted == []
    memory.count(-MB)  # 10 are used: one may pass
    assert shortage.granted == ["first"]
    memory.count(-6 * MB)
    assert shortage.granted == ["first", "second", "third"]
    assert memory.used == 13 * MB


def test_no_response_overtakes_those_that_wait() -> None:
    memory, shortage = ResponseMemory(10 * MB), Shortage()
    memory.count(11 * MB)
    turn = memory.wait(MB, lambda: shortage.grant("a"))
    assert memory.share(1) is None
    memory.withdraw(turn)
    memory.withdraw(turn)
    memory.count(-11 * MB)
    assert shortage.granted == []
    assert memory.share(1) == 1


def test_a_turn_of_a_client_that_is_gone_goes_to_the_next() -> None:
    memory, shortage = ResponseMemory(10 * MB), Shortage()
    memory.count(11 * MB)
    memory.wait(20 * MB, lambda: shortage.grant("gone", is_there=False))
    memory.wait(2 * MB, lambda: shortage.grant("next"))
    memory.count(-11 * MB)
    assert shortage.granted == ["gone", "next"]
    assert memory.used == 2 * MB


def test_a_response_counts_until_its_last_byte_is_read() -> None:
    memory, client = ResponseMemory(10 * MB), FakeClient()
    write(memory, client, 4 * MB)
    write(memory, client, 2 * MB)
    assert memory.used == 6 * MB
    client.unread_bytes = 2 * MB + 1  # all but one byte of the first
    memory.measure()
    assert memory.used == 6 * MB
    client.unread_bytes = 2 * MB
    memory.measure()
    assert memory.used == 2 * MB
    client.unread_bytes = 0
    memory.measure()
    assert memory.used == 0
    assert not memory.has_unread(client)


def test_stuck_clients_are_closed_only_while_others_wait_and_the_largest_first() -> None:
    memory, shortage = ResponseMemory(10 * MB), Shortage()
    small, large = FakeClient(), FakeClient()
    write(memory, small, 3 * MB)
    write(memory, large, 7 * MB)
    assert evicted(memory, 1000.0) == []
    memory.count(MB)
    memory.wait(MB, lambda: shortage.grant("other"))
    assert evicted(memory, 1000.0) == [large]
    assert shortage.granted == ["other"]
    assert evicted(memory, 2000.0) == []


def test_a_client_that_reads_a_sixteenth_in_time_is_not_stuck() -> None:
    memory, client = ResponseMemory(MB), FakeClient()
    write(memory, client, 16 * MB)
    memory.wait(MB, lambda: True)
    steps = round(SLOW_SECONDS / STUCK_SECONDS * 2)
    now = 0.0
    while client.unread_bytes > MB:
        each = -(-client.unread_bytes // 16) // steps + 1
        for _ in range(steps):
            now += STUCK_SECONDS / 2 - 0.01
            client.unread_bytes -= each
            assert evicted(memory, now) == []
    for _ in range(2 * steps):  # some bytes every time, and too few
        client.unread_bytes -= 1
        now += STUCK_SECONDS / 2 - 0.01
        if evicted(memory, now):
            break
    assert not memory.has_unread(client)


def test_clients_that_have_read_before_get_every_other_turn() -> None:
    memory, shortage = ResponseMemory(10 * MB), Shortage()
    memory.count(11 * MB)
    for name in ("new 1", "new 2", "new 3"):
        memory.wait(20 * MB, partial(shortage.grant, name))
    for name in ("known 1", "known 2"):
        memory.wait(20 * MB, partial(shortage.grant, name), has_read=True)
    memory.count(-11 * MB)
    for _ in range(4):
        memory.count(-20 * MB)
    assert shortage.granted == ["known 1", "new 1", "known 2", "new 2", "new 3"]


def test_a_client_with_unread_responses_gets_no_others_while_memory_is_short() -> None:
    shortage = Shortage()
    memory, client, other = ResponseMemory(MB, shortage), FakeClient(), FakeClient()
    write(memory, client, MB)
    assert not memory.blocks(client)
    write(memory, other, MB)
    assert memory.blocks(client)
    memory.forget(other)
    assert not memory.is_short
    assert memory.needs_relief  # or nothing would let it continue
    client.unread_bytes = 0
    evicted(memory, 0.0)
    assert client.continued == 1
    assert not memory.needs_relief


def test_small_unread_responses_before_the_first_that_counts_are_progress_too() -> None:
    memory, client = ResponseMemory(10), FakeClient()
    client.unread_bytes = UNCOUNTED_BYTES
    write(memory, client, 100)
    memory.wait(1, lambda: True)
    client.unread_bytes = UNCOUNTED_BYTES // 2
    assert evicted(memory, STUCK_SECONDS) == []
