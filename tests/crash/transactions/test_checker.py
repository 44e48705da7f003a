"""The checker of the crash tests of transactions finds each kind of mistake."""

from __future__ import annotations

import pytest

from tests.crash.transactions.checker import Found, Outcome, check
from tests.crash.transactions.clients import Record
from tests.crash.transactions.worker import result_of

GIVEN: Found = {(p, offset): b"%d" % offset for p in range(2) for offset in range(4)}
RESULTS: Found = {(p, o): result_of(Record(p, o, None, value)) for (p, o), value in GIVEN.items()}


def outcome(results: Found) -> Outcome:
    return Outcome(GIVEN, results, {**results, (0, 100): b"aborted"})


def test_each_result_once_and_in_order_is_right() -> None:
    check(outcome(RESULTS), 2)
    assert outcome(RESULTS).aborted == 1


def test_offsets_may_have_gaps() -> None:
    check(outcome({(p, offset * 3): value for (p, offset), value in RESULTS.items()}), 2)


@pytest.mark.parametrize(
    ("results", "complaint"),
    [
        ({k: v for k, v in RESULTS.items() if k != (1, 2)}, "partition 1: 1 lost"),
        ({**RESULTS, (1, 9): RESULTS[1, 2]}, "partition 1: 1 more than once"),
        ({**RESULTS, (1, 9): b"x"}, "no worker should write"),
        ({**RESULTS, (0, 1): RESULTS[0, 2], (0, 2): RESULTS[0, 1]}, "order differs"),
        ({**RESULTS, (0, 1): RESULTS[1, 1], (1, 1): RESULTS[0, 1]}, "partition 0: 1 lost"),
    ],
)
def test_what_is_wrong_is_found(results: Found, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(outcome(results), 2)


def test_a_record_that_only_one_isolation_level_shows_is_found() -> None:
    with pytest.raises(AssertionError, match="isolation level"):
        check(Outcome(GIVEN, RESULTS, {k: v for k, v in RESULTS.items() if k != (0, 0)}), 2)
