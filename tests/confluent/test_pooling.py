"""A pool of clients keeps a bounded number of them, and those that are in use."""

from __future__ import annotations

from tidemill.confluent.pooling import ClientPool


class Pool:
    """A pool of names. ``use`` takes a client and returns it, as a task does."""

    def __init__(self, limit: int) -> None:
        self.now = 0.0
        self.made: list[str] = []
        self.closed: list[str] = []
        self._pool: ClientPool[str] = ClientPool(
            self.closed.append, limit=limit, clock=lambda: self.now
        )

    def use(self, name: str) -> None:
        def make() -> str:
            self.made.append(name)
            return name

        settings = {"name": name}
        self._pool.give(settings, self._pool.take(settings, make))

    def clear(self) -> None:
        self._pool.clear()


def test_a_client_is_used_again() -> None:
    pool = Pool(2)
    for name in "abab":
        pool.use(name)
    assert (pool.made, pool.closed) == (["a", "b"], [])
    pool.clear()
    assert sorted(pool.closed) == ["a", "b"]


def test_clients_that_are_used_in_turn_do_not_replace_each_other() -> None:
    pool = Pool(3)
    for _ in range(10):
        for name in "abcd":
            pool.use(name)
    assert [pool.made.count(name) for name in "abc"] == [1, 1, 1]
    assert pool.made.count("d") == pool.closed.count("d") == 10
    assert set(pool.closed) == {"d"}


def test_a_client_that_is_not_used_any_more_makes_space() -> None:
    pool = Pool(2)
    pool.use("old")
    pool.now = 50.0
    pool.use("b")
    pool.use("c")
    assert pool.closed == ["c"]
    pool.now = 61.0
    pool.use("c")
    assert pool.closed == ["c", "old"]
    pool.use("b")
    pool.use("c")
    assert pool.made == ["old", "b", "c", "c"]


def test_a_client_that_fails_to_close_does_not_fail_the_next_task() -> None:
    def fail(client: str) -> None:
        raise RuntimeError(client)

    pool = ClientPool[str](fail, limit=1)
    pool.give({"name": "a"}, "a")
    pool.give({"name": "b"}, "b")
    assert pool.take({"name": "a"}, lambda: "new") == "a"
