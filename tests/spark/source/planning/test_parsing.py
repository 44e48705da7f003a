"""Options of parsing, and the columns that come from the record."""

from __future__ import annotations

import pytest

from tidemill.spark.base.ddl import columns
from tidemill.spark.errors import OptionError, SchemaError
from tidemill.spark.source.planning.parsing import (
    RECORD_COLUMNS,
    RowPlan,
    check_columns,
    parsing_options,
)


def test_values_are_not_parsed_without_a_format() -> None:
    assert parsing_options({}) is None
    assert parsing_options({"includeHeaders": "true"}) is None


@pytest.mark.parametrize("name", ["value.schema", "event.time", "timestamp.format", "mode", "rows"])
def test_an_option_that_would_have_no_effect_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} has no effect without value.format"):
        parsing_options({name: "x"})


def test_defaults_and_spellings() -> None:
    assert parsing_options({"value.format": " Json "}) == RowPlan(format="json")
    assert parsing_options(
        {
            "value.format": "json",
            "mode": "DropMalformed",
            "rows": "REFUSED",
            "value.schema": "a INT",
            "event.time": "at",
            "timestamp.format": "epoch_ms",
        }
    ) == RowPlan("a INT", "json", "at", "epoch_ms", drop_malformed=True, refused=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("value.format", "avro"), ("value.format", ""), ("mode", "PERMISSIVE"), ("rows", "both")],
)
def test_an_unknown_value_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"invalid option {name} '{value}'"):
        parsing_options({"value.format": "json", name: value})


def test_columns_of_the_record_have_their_own_types() -> None:
    declared = ", ".join(f"{name} {kind}" for name, kind in RECORD_COLUMNS.items())
    check_columns(columns(f"a INT, {declared}"))
    check_columns(columns("a INT, _headers array<struct<`key`: string, `value`: binary>>"))
    for wrong in ("_key STRING", "_OFFSET BIGINT", "_timestamp BIGINT", "_headers STRING"):
        with pytest.raises(SchemaError, match="reserved for a column of the record"):
            check_columns(columns(f"a INT, {wrong}"))
    with pytest.raises(SchemaError, match="no column of the value"):
        check_columns(columns(declared))
