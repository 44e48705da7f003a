"""What counts as each type: docs/json-values.md as tables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.source.parse.conftest import Parse
from tests.spark.source.parse.tables import ACCEPTED, EPOCHS, REFUSED


@pytest.mark.parametrize(("ddl", "text", "value"), ACCEPTED)
def test_a_value_of_the_type_is_accepted(parse: Parse, ddl: str, text: str, value: Any) -> None:
    found = parse(f"x {ddl}", f'{{"x": {text}}}', f'{{ "a":[] ,"x" :\n{text}\t, "b":{{}} }} ')
    assert found.reasons == []
    assert found.accepted is None
    for one in found.columns[0].to_pylist():
        if isinstance(value, float):
            assert repr(one) == repr(value)
        else:
            assert (one, type(one)) == (value, type(value))


@pytest.mark.parametrize(("ddl", "text", "shown"), REFUSED)
def test_a_value_of_another_type_is_refused(parse: Parse, ddl: str, text: str, shown: str) -> None:
    found = parse(f"x {ddl}", f'{{"x": {text}}}')
    assert [reason for _, reason in found.reasons] == [f"x is not {ddl}: {shown}"]
    assert found.columns[0].to_pylist() == []


@pytest.mark.parametrize(("timestamp_format", "text", "value"), EPOCHS)
def test_a_number_is_a_timestamp_by_declaration_only(
    parse: Parse, timestamp_format: str, text: str, value: str | None
) -> None:
    found = parse("x TIMESTAMP", f'{{"x": {text}}}', timestamp_format=timestamp_format)
    told = [str(v) for v in found.columns[0].cast("int64").to_pylist()]
    assert (told or None) == (None if value is None else [value])
