"""Quotas: eight levels, token buckets, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.state.errors import InvalidRequestError
from tidemill.state.security.quotas import (
    CONNECTION_RATE,
    MOST_DEBT_S,
    MOST_THROTTLE_MS,
    PRODUCER_RATE,
    Bucket,
    check_quota,
    quota_of,
    quota_of_address,
)
from tidemill.state.security.types import DEFAULT, QuotaEntity

E = QuotaEntity
LEVELS = [
    (E("u", "c"), E("u", "c")),
    (E("u", DEFAULT), E("u", "c")),
    (E("u"), E("u")),
    (E(DEFAULT, "c"), E("u", "c")),
    (E(DEFAULT, DEFAULT), E("u", "c")),
    (E(DEFAULT), E("u")),
    (E(None, "c"), E(None, "c")),
    (E(None, DEFAULT), E(None, "c")),
]
"""An entity with a quota, and the entity whose clients share the bucket; the strongest first."""


@pytest.mark.parametrize("level", range(8))
def test_the_most_specific_level_counts(level: int) -> None:
    quotas = {entity: {PRODUCER_RATE: float(n + 1)} for n, (entity, _) in enumerate(LEVELS)}
    weaker = {entity: quotas[entity] for entity, _ in LEVELS[level:]}
    assert quota_of(weaker, "u", "c", PRODUCER_RATE) == (level + 1.0, LEVELS[level][1])
    assert quota_of(weaker, "u", "c", "request_percentage") is None


def test_other_users_and_clients_have_no_quota() -> None:
    quotas = {E("u", "c"): {PRODUCER_RATE: 1.0}, E(None, "d"): {PRODUCER_RATE: 2.0}}
    assert quota_of(quotas, "v", "c", PRODUCER_RATE) is None
    assert quota_of(quotas, "u", "x", PRODUCER_RATE) is None
    assert quota_of(quotas, "v", "d", PRODUCER_RATE) == (2.0, E(None, "d"))


def test_an_address_has_its_own_quota_or_the_default() -> None:
    quotas = {E(ip="10.0.0.1"): {CONNECTION_RATE: 1.0}, E(ip=DEFAULT): {CONNECTION_RATE: 5.0}}
    assert quota_of_address(quotas, "10.0.0.1", CONNECTION_RATE) == (1.0, E(ip="10.0.0.1"))
    assert quota_of_address(quotas, "10.0.0.2", CONNECTION_RATE) == (5.0, E(ip="10.0.0.2"))
    assert quota_of_address({}, "10.0.0.2", CONNECTION_RATE) is None


def test_a_bucket_has_the_tokens_of_one_second_and_then_a_debt() -> None:
    bucket = Bucket(1000, 0)
    assert bucket.use(1000, 0) == 0
    assert bucket.use(500, 0) == 500
    assert bucket.wait_ms(400) == 100
    assert bucket.wait_ms(500) == 0
    assert bucket.use(0, 10_000) == 0
    assert bucket.is_full(10_000)
    assert bucket.use(2000, 10_000) == 1000


def test_a_debt_and_a_pause_are_bounded() -> None:
    bucket = Bucket(1, 0)
    assert bucket.use(1e12, 0) == MOST_THROTTLE_MS
    assert bucket.wait_ms(int(MOST_DEBT_S * 1000)) == 0


@given(
    st.floats(0.5, 1e6),
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 1e6)), min_size=1, max_size=50),
)
def test_a_client_that_waits_as_asked_gets_its_rate_and_a_burst_of_one_second(
    rate: float, steps: list[tuple[int, float]]
) -> None:
    bucket, now, used = Bucket(rate, 0), 0, 0.0
    for pause, amount in steps:
        now += pause
        amount = min(amount, rate)
        used += amount
        while (wait := bucket.use(amount, now)) or bucket.wait_ms(now):
            now += wait
            amount = 0
        assert used <= rate * (now / 1000) + rate * 1.01


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        (E(), {PRODUCER_RATE: 1.0}),
        (E("u", ip="10.0.0.1"), {CONNECTION_RATE: 1.0}),
        (E("u"), {CONNECTION_RATE: 1.0}),
        (E(ip="10.0.0.1"), {PRODUCER_RATE: 1.0}),
        (E("u"), {"bytes": 1.0}),
        *((E("u"), {PRODUCER_RATE: bad}) for bad in (0.0, -1.0, math.nan, math.inf, -math.inf)),
    ],
)
def test_an_invalid_quota_is_refused(entity: QuotaEntity, changes: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError):
        check_quota(entity, changes)
