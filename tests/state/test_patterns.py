"""Patterns of transactional ids, with RE2 and without."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.state.errors import InvalidRegularExpressionError
from tidemill.state.patterns import _literal_matcher, id_matcher, name_matcher

IDS = ["", "shop", "shop-", "shop-1", "shop-1.2", "shop-12", "web-shop-1", "shop-1-1", "a*b", "é"]

LITERAL = {
    "": {""},
    "shop": {"shop"},
    "shop-.*": {"shop-", "shop-1", "shop-1.2", "shop-12", "shop-1-1"},
    ".*-1": {"shop-1", "web-shop-1", "shop-1-1"},
    ".*shop.*1": {"shop-1", "web-shop-1", "shop-1-1"},
    r"shop-1\.2": {"shop-1.2"},
    r"a\*b": {"a*b"},
    ".*": set(IDS),
    "é": {"é"},
}


@pytest.fixture
def without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)


@pytest.fixture(params=["with re2", "without re2"])
def both_ways(request: pytest.FixtureRequest) -> None:
    if request.param == "with re2":
        pytest.importorskip("re2")
    else:
        request.getfixturevalue("without_re2")


@pytest.mark.parametrize(("pattern", "matched"), LITERAL.items())
def test_literals_and_wildcards_match(both_ways: None, pattern: str, matched: set[str]) -> None:
    matches = id_matcher(pattern)
    assert {each for each in IDS if matches(each)} == matched


@pytest.mark.parametrize("pattern", ["(a|a)*(a+)+", "shop-.", "^shop", "a+", "[ab]", r"\d", "a\\"])
def test_other_patterns_need_re2(without_re2: None, pattern: str) -> None:
    with pytest.raises(
        InvalidRegularExpressionError, match="not supported without google-re2"
    ) as e:
        id_matcher(pattern)
    assert "pip install 'tidemill[re2]'" in (e.value.hint or "")


def test_re2_knows_its_whole_syntax() -> None:
    pytest.importorskip("re2")
    assert id_matcher("shop-[0-9]+")("shop-12")
    assert not id_matcher("shop-[0-9]+")("shop-12x")
    with pytest.raises(InvalidRegularExpressionError, match=r"invalid regular expression '\('"):
        id_matcher("(")


PIECES = st.lists(st.sampled_from(["a", "b", "ab", ".*", r"\.", r"\\"]), max_size=6).map("".join)


@given(PIECES, st.text(alphabet="ab.\\", max_size=8))
def test_both_ways_agree(pattern: str, transactional_id: str) -> None:
    pytest.importorskip("re2")
    assert _literal_matcher(pattern)(transactional_id) == id_matcher(pattern)(transactional_id)


def test_time_is_bounded_without_re2(without_re2: None) -> None:
    matches = id_matcher(".*a" * 2000 + "b")
    assert not matches("a" * 30_000)


@pytest.mark.parametrize(
    ("pattern", "found", "missing"),
    [
        (".*", ["", "orders"], []),
        ("", [], ["", "orders"]),
        ("^$", [""], ["orders"]),
        ("ord", ["orders", "my-ord", "ord"], ["or"]),
        ("^ord", ["orders"], ["my-orders"]),
        ("ers$", ["orders"], ["orders2"]),
        ("^orders$", ["orders"], ["orders2", "my-orders"]),
        (r"^amq\.default$", ["amq.default"], ["amqxdefault"]),
        (r"cost\$", ["cost$", "cost$s"], ["cost"]),
    ],
)
def test_a_pattern_of_a_permission_is_searched(
    both_ways: None, pattern: str, found: list[str], missing: list[str]
) -> None:
    matches = name_matcher(pattern)
    assert [name for name in [*found, *missing] if matches(name)] == found
