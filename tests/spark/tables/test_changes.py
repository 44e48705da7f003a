"""Keys of changelogs: equal for Spark is equal here, however they are written."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.spark.tables.changes import Change, TableSpec, canonical, foreign_key_of


def spec(*columns: tuple[str, str], **fields: Any) -> TableSpec:
    return TableSpec("t", tuple(name for name, _ in columns), (), columns, **fields)


def test_keys_are_equal_whatever_their_spaces_and_their_order() -> None:
    two = spec(("a", "STRING"), ("b", "INT"))
    assert canonical(b'{"b": 1,  "a": "x"}', two) == canonical(b'{"a":"x","b":1}', two)
    assert canonical(b"anything", spec(("a", "STRING"))) == b"anything"
    assert {canonical(bad, two) for bad in (b"x", b"[1]", b'{"a":1}')} == {None}


SPELT = [
    ("INT", "7", ["07", "+7", " 7\n"]),
    ("BIGINT", "-7", ["-07"]),
    ("TINYINT", "0", ["-0", "000"]),
    ("BOOLEAN", "true", ["TRUE", "t", "yes", " Y ", "1"]),
    ("BOOLEAN", "false", ["F", "no", "n", "0"]),
    ("DATE", "2024-01-02", ["2024-1-2", " 2024-01-02 ", "2024-01-02T05:00", "2024-1-2 5:00Z"]),
]


@pytest.mark.parametrize(("kind", "plain", "others"), SPELT)
def test_a_key_is_the_same_in_every_spelling(kind: str, plain: str, others: list[str]) -> None:
    one = spec(("a", kind))
    assert {canonical(text.encode(), one) for text in [plain, *others]} == {plain.encode()}


def test_what_is_no_value_of_the_type_stays_as_it_is() -> None:
    wrong = {"INT": "1.0", "BOOLEAN": "maybe", "DATE": "2024-02-30", "STRING": "01", "DOUBLE": "1"}
    for kind, text in wrong.items():
        assert canonical(text.encode(), spec(("a", kind))) == text.encode()
    assert canonical(b"\xff", spec(("a", "INT"))) == b"\xff"


def test_a_foreign_key_is_spelt_as_the_key() -> None:
    def of(value: bytes, *columns: tuple[str, str]) -> bytes | None:
        own = spec(*columns, foreign_key=tuple((name, f"to_{name}") for name, _ in columns))
        return foreign_key_of(Change(b"k", value, 0, 0, 0), own)

    assert of(b'{"d": "2024-1-2"}', ("d", "DATE")) == b"2024-01-02"
    assert of(b'{"n": 7}', ("n", "INT")) == of(b'{"n": 7}', ("n", "STRING")) == b"7"
    right = spec(("to_n", "STRING"), ("to_d", "DATE"))
    made = of(b'{"n": 7, "d": "2024-1-2"}', ("n", "STRING"), ("d", "DATE"))
    assert made == canonical(b'{"to_d": "2024-01-02", "to_n": "7"}', right)
    assert of(b'{"n": null}', ("n", "INT")) is None
