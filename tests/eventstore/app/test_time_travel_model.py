"""Time travel and snapshots against a fold of the events that were written, with Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventstore.app.bank import Account, Bank, Deposited, Opened
from tests.support.effort import examples
from tidemill.eventstore.app import SnapshotPolicy
from tidemill.eventstore.app.errors import TruncatedStreamError
from tidemill.eventstore.app.handlers import evolve
from tidemill.eventstore.memory_store import MemoryStore

NAMES = ["ada", "eve"]
STEPS = st.one_of(
    st.tuples(st.just("deposit"), st.sampled_from(NAMES), st.integers(1, 4)),
    st.tuples(st.just("clock"), st.just(""), st.integers(-2000, 3000)),
    st.tuples(st.just("version"), st.sampled_from(NAMES), st.integers(0, 12)),
    st.tuples(st.just("position"), st.sampled_from(NAMES), st.integers(0, 25)),
    st.tuples(st.just("time"), st.sampled_from(NAMES), st.integers(0, 20_000)),
    st.tuples(st.just("truncate"), st.sampled_from(NAMES), st.integers(1, 12)),
    st.tuples(st.just("snapshot"), st.sampled_from(NAMES), st.just(0)),
)
Written = tuple[int, int, object]
"""Position, time in milliseconds, and event."""


def expected(written: Sequence[Written], kind: str, bound: int) -> tuple[Account, int]:
    """Return the state and the version of a plain fold."""
    state, version = Account(), 0
    for number, (position, time_ms, event) in enumerate(written, 1):
        if {"version": number, "position": position, "time": time_ms}[kind] > bound:
            break
        state, version = evolve(state, event), number
    return state, version


@given(st.lists(STEPS, max_size=60), st.integers(1, 5))
@settings(max_examples=examples(60))
def test_every_moment_is_what_a_fold_of_the_events_up_to_it_is(
    steps: list[tuple[str, str, int]], every: int
) -> None:
    now = [10_000]
    store = MemoryStore(lambda: now[0])
    policy: SnapshotPolicy[Account] = SnapshotPolicy(Account, every=every)
    bank = Bank.over(store, snapshots=policy)
    written: dict[str, list[Written]] = {name: [] for name in NAMES}
    truncated = dict.fromkeys(NAMES, 0)

    def write(name: str, events: Sequence[object]) -> None:
        done = bank.accounts.execute(name, lambda _: events)
        for event, position in zip(
            events, range(done.position - len(events) + 1, done.position + 1), strict=True
        ):
            written[name].append((position, now[0], event))

    for kind, name, number in steps:
        if kind == "clock":
            now[0] += number
        elif kind == "deposit":
            first = [] if written[name] else [Opened(name)]
            readable(partial(write, name, [*first, Deposited(number)]), truncated, name)
        elif kind == "snapshot":
            readable(partial(bank.accounts.snapshot, name), truncated, name)
        elif kind == "truncate":
            # Behind a snapshot, as the guide says, or not.
            below = min(number, len(written[name]))
            if below > 1:
                store.truncate({f"account-{name}": below})
                truncated[name] = max(truncated[name], below)
        else:
            moment: Any = datetime.fromtimestamp(number / 1000, UTC) if kind == "time" else number
            as_of = partial(bank.accounts.as_of, name, **{kind: moment})
            loaded = readable(as_of, truncated, name)
            if loaded is not None:
                assert (loaded.state, loaded.version) == expected(written[name], kind, number)


def readable(run: Any, truncated: dict[str, int], name: str) -> Any:
    """Run something; only what was truncated can be missing."""
    try:
        return run()
    except TruncatedStreamError:
        assert truncated[name]
        return None
