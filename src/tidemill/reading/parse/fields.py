"""Columns for JSON values without a declared schema: fields are found in values, then parsed.

SQL on topics and ``tidemill.read`` use it. Must not know: topics, records, DuckDB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemill.reading.parse.contract import Reasons
from tidemill.reading.parse.json_parser import JsonParser
from tidemill.reading.parse.schema import ParsedColumn, ParseSchema

MOST_FIELDS = 500
DEPTH = 5
"""Objects deeper than this are text."""
Fields = Mapping[str, pa.DataType]


def objects_in(values: Iterable[bytes | None]) -> list[dict[str, Any]]:
    """Return those of the values that are JSON objects."""
    found = []
    for value in values:
        try:
            each = json.loads(value) if value is not None else None
        except (ValueError, RecursionError):
            continue
        if isinstance(each, dict):
            found.append(each)
    return found


def fields_of(objects: Sequence[Mapping[str, Any]], depth: int = DEPTH) -> dict[str, pa.DataType]:
    """Return the fields of objects with types that take all their values.

    Names differ not only in case: of several spellings the first counts. Fields above
    ``MOST_FIELDS`` are left out, and those whose names no schema of Arrow can pass on: with half
    of a surrogate pair, which values must not have either, or with a zero byte.
    """
    names: dict[str, str] = {}
    for each in objects:
        for name in each:
            names.setdefault(name.lower(), name)
    kept = [name for name in names.values() if _is_passed_on(name)][:MOST_FIELDS]
    return {n: _type_of([each[n] for each in objects if n in each], depth - 1) for n in kept}


def _is_passed_on(name: str) -> bool:
    return "\0" not in name and not any("\ud800" <= each <= "\udfff" for each in name)


def _type_of(values: Sequence[Any], depth: int) -> pa.DataType:
    """Return the type that takes all values. Text takes any value of JSON as it is written."""
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in there):
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    if kinds == {dict} and depth > 0:
        fields = fields_of(there, depth)
        return pa.struct(list(fields.items())) if fields else pa.string()
    if kinds == {list} and depth > 0:
        inner = [item for value in there for item in value]
        return pa.list_(_type_of(inner, depth - 1)) if inner else pa.string()
    return pa.string()


class FieldParser:
    """Parses the fields of JSON objects, a row for each value.

    Args:
        fields: names and Arrow types of the columns.
    """

    def __init__(self, fields: Fields) -> None:
        columns = tuple(
            ParsedColumn(name, str(kind).upper(), kind) for name, kind in fields.items()
        )
        self._parser = JsonParser(ParseSchema(columns), (True,) * len(columns))

    def parse(self, values: pa.Array) -> tuple[list[pa.Array], Reasons]:
        """Return the columns, and which values do not fit, with the reason.

        A row has nulls if its value is null or does not fit. A null is not among the reasons.
        """
        parsed = self._parser.parse(values)
        if not parsed.reasons:
            return list(parsed.columns), []
        refused = {index for index, _ in parsed.reasons}
        taken, following = [], 0
        for index in range(len(values)):
            taken.append(None if index in refused else following)
            following += index not in refused
        places = pa.array(taken, pa.int64())
        reasons = [(index, why) for index, why in parsed.reasons if values[index].is_valid]
        return [column.take(places) for column in parsed.columns], reasons
