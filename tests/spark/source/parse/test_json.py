"""What a JSON object is, how it becomes a row, and why it is refused otherwise."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.spark.source.parse.conftest import Parse, make
from tests.spark.source.parse.tables import ACCEPTED, EPOCHS, REFUSED

AT = "2013-01-01T05:00:00Z"
SCHEMA = "flight STRING, delay INT, at TIMESTAMP, gate STRUCT<name: STRING>, tags ARRAY<STRING>"
NOT_AN_OBJECT = "the value is not a JSON object"
NOT_UTF8 = "the value is not UTF-8 text"
MORE = "the value has more than its JSON object"


def test_accepted_values_are_rows_and_others_have_a_reason(parse: Parse) -> None:
    found = parse(
        SCHEMA,
        f'{{"flight": "AA1", "delay": 5, "at": "{AT}"}}',
        f'{{"flight": "AA2", "delay": "soon", "at": "{AT}", "gate": "B7", "tags": ["lost"]}}',
        f' \n{{"delay": null, "flight": "AA3", "at": "{AT}", "unknown": [1, 2]}}\r\t',
        '{"flight": "AA4"}',
        None,
        f'{{"at": "{AT}", "gate": {{"name": "B7"}}, "tags": ["x", null]}}',
        event_time="at",
    )
    rows = pa.table(found.columns, ["flight", "delay", "at", "gate", "tags"]).to_pylist()
    assert [(r["flight"], r["delay"], r["gate"], r["tags"]) for r in rows] == [
        ("AA1", 5, None, None),
        ("AA3", None, None, None),
        (None, None, {"name": "B7"}, ["x", None]),
    ]
    assert found.accepted is not None
    assert found.accepted.to_pylist() == [True, False, True, False, False, True]
    assert found.reasons == [
        (1, "delay is not INT: soon; gate is not STRUCT<name: STRING>: B7"),
        (3, "the event time at is missing"),
        (4, "the value is null"),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", NOT_AN_OBJECT),
        (b" ", NOT_AN_OBJECT),
        (b"not json", NOT_AN_OBJECT),
        (b"[1, 2]", NOT_AN_OBJECT),
        (b'[{"x": 1}]', NOT_AN_OBJECT),
        (b'"text"', NOT_AN_OBJECT),
        (b"42", NOT_AN_OBJECT),
        (b"null", NOT_AN_OBJECT),
        (b"{", NOT_AN_OBJECT),
        (b'{"x"', NOT_AN_OBJECT),
        (b'{"x":', NOT_AN_OBJECT),
        (b'{"x": 1', NOT_AN_OBJECT),
        (b'{"x": 1,', NOT_AN_OBJECT),
        (b'{"x": 1,}', NOT_AN_OBJECT),
        (b'{,"x": 1}', NOT_AN_OBJECT),
        (b'{"x": 1 "y": 2}', NOT_AN_OBJECT),
        (b'{"x" 1}', NOT_AN_OBJECT),
        (b'{"x": }', NOT_AN_OBJECT),
        (b"{'x': 1}", NOT_AN_OBJECT),
        (b"{x: 1}", NOT_AN_OBJECT),
        (b'{"x": 1]', NOT_AN_OBJECT),
        (b'{"y": [1, {"a": [}]}', NOT_AN_OBJECT),
        (b'{"y": [1, 2}', NOT_AN_OBJECT),
        (b'{"y": [1,]}', NOT_AN_OBJECT),
        (b'{"y": {"a": 1,}}', NOT_AN_OBJECT),
        (b'{"y": {"a"}}', NOT_AN_OBJECT),
        (b'{"y": {1: 2}}', NOT_AN_OBJECT),
        (b'\xef\xbb\xbf{"x": 1}', NOT_AN_OBJECT),
        (b'{"x": 1\x00}', NOT_AN_OBJECT),
        (b'{"x": 1}\x00', MORE),
        (b'{"x":\x0c1}', NOT_AN_OBJECT),
        (b'{"x":\xc2\xa01}', NOT_AN_OBJECT),
        (b'{"y": "\t"}', NOT_AN_OBJECT),
        (b'{"y": "\x1f"}', NOT_AN_OBJECT),
        (b'{"y": "\\x"}', NOT_AN_OBJECT),
        (b'{"y": "\\u12g4"}', NOT_AN_OBJECT),
        (b'{"y": "\\u123"}', NOT_AN_OBJECT),
        (b'{"y": "\\ud800"}', NOT_AN_OBJECT),
        (b'{"y": "\\ud800x\\udc00"}', NOT_AN_OBJECT),
        (b'{"y": "\\udc00\\ud800"}', NOT_AN_OBJECT),
        (b'{"y": "\\ud800\\ud800\\udc00"}', NOT_AN_OBJECT),
        (b'{"\\ud800": 1}', NOT_AN_OBJECT),
        (b'{"y": "open}', NOT_AN_OBJECT),
        (b'{"y": "open\\"}', NOT_AN_OBJECT),
        (b'{"y": "open\\', NOT_AN_OBJECT),
        (b'{"y": NaN}', NOT_AN_OBJECT),
        (b'{"x": Infinity}', NOT_AN_OBJECT),
        (b'{"x": -Infinity}', NOT_AN_OBJECT),
        (b'{"x": 01}', NOT_AN_OBJECT),
        (b'{"y": -01}', NOT_AN_OBJECT),
        (b'{"y": +1}', NOT_AN_OBJECT),
        (b'{"y": .5}', NOT_AN_OBJECT),
        (b'{"x": 1.}', NOT_AN_OBJECT),
        (b'{"x": 1e}', NOT_AN_OBJECT),
        (b'{"x": 1e+}', NOT_AN_OBJECT),
        (b'{"x": -}', NOT_AN_OBJECT),
        (b'{"x": 0x10}', NOT_AN_OBJECT),
        (b'{"x": 1_000}', NOT_AN_OBJECT),
        (b'{"x": truest}', NOT_AN_OBJECT),
        (b'{"x": nul}', NOT_AN_OBJECT),
        (b'{"x": nulls}', NOT_AN_OBJECT),
        (b'{"y": tru}', NOT_AN_OBJECT),
        (b'{"y": "a" "b"}', NOT_AN_OBJECT),
        (b'{"x": 1} // comment', MORE),
        (b'{"x": 1} trailing', MORE),
        (b'{"x": 1}{"x": 2}', MORE),
        (b'{"x": 1}\n{"x": 2}', MORE),
        (b'{"x": 1},"x": 2', MORE),
        (b'{"x": 1},"__tidemill_end":null},"more":{"x": 2', MORE),
        (b'{"x": "1"},"__tidemill_end":null},"__tidemill_row":{"x": 2}', MORE),
        (b'{"x": 1}}', MORE),
        (b'{"x": 1}]', MORE),
        (b'{"x": "wrong"}]', MORE),
        (b'{"x": "wrong", "y": ]}', NOT_AN_OBJECT),
        (b'{"y": "\xff"}', NOT_UTF8),
        (b'{"x": "\xff"}', NOT_UTF8),
        (b"not json \xff", NOT_UTF8),
        (b'{"x": 1} \xff', NOT_UTF8),
        (b'{"y": "\xc0\x80"}', NOT_UTF8),
        (b'{"y": "\xc3"}', NOT_UTF8),
        (b'{"y": "\xe0\x80\x80"}', NOT_UTF8),
        (b'{"y": "\xed\xa0\x80"}', NOT_UTF8),
        (b'{"y": "\xf0\x80\x80\x80"}', NOT_UTF8),
        (b'{"y": "\xf4\x90\x80\x80"}', NOT_UTF8),
        (b'{"y": "\xf8\x88\x80\x80\x80"}', NOT_UTF8),
        (b'{"y": "\x80"}', NOT_UTF8),
        (b'{"y": "\xf0\x9f\x98"}', NOT_UTF8),
        (b'{"\xff": 1}', NOT_UTF8),
    ],
)
def test_what_is_not_one_json_object_is_refused(parse: Parse, value: bytes, reason: str) -> None:
    for schema in ("x INT", "x STRING", "y STRING", "z INT"):
        found = parse(schema, b'{"x": 1}', value, b"{}")
        assert found.reasons == [(1, reason)]
        assert len(found.columns[0]) == 2


@pytest.mark.parametrize("schema", ["x INT", "x STRING", "x ARRAY<STRING>", "y INT"])
def test_objects_and_arrays_nest_a_thousand_deep(parse: Parse, schema: str) -> None:
    def nested(depth: int) -> str:
        return '{"x": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"

    deep, deeper, bomb = parse(schema, nested(1000), nested(1001), '{"x":' + "[" * 1_000_000), 1, 2
    told = dict(deep.reasons)
    assert told.get(0, "") in ("", f"x is not {schema[2:]}: {'[' * 100}")
    assert told[deeper] == NOT_AN_OBJECT
    assert told[bomb] == NOT_AN_OBJECT
    objects = parse(schema, '{"a":' * 1000 + "1" + "}" * 1000, '{"a":' * 1001 + "1" + "}" * 1001)
    assert objects.reasons == [(1, NOT_AN_OBJECT)]


@pytest.mark.parametrize("schema", ["x DOUBLE", "x STRING", "y INT"])
def test_a_number_has_at_most_a_thousand_characters(parse: Parse, schema: str) -> None:
    longest = "0." + "1" * 998
    found = parse(schema, f'{{"x": {longest}}}', f'{{"x": {longest}1}}')
    assert found.reasons == [(1, NOT_AN_OBJECT)]


def test_unknown_fields_are_skipped(parse: Parse) -> None:
    value = '{"a": {"x": [1, {"x": "}"}]}, "x": 1, "b": [[], {}, "\\"", -0.5e-3, true, null]}'
    assert parse("x INT", value).columns[0].to_pylist() == [1]


def test_the_last_field_of_a_name_is_taken_and_each_is_checked(parse: Parse) -> None:
    found = parse(
        "x INT, y ARRAY<STRING>, z STRING",
        '{"x": 1, "y": ["a", "b"], "z": "long", "x": 2, "y": ["c"], "z": "s", "y": []}',
        '{"x": 1, "x": null, "\\u007a": "escaped", "z": null, "z": "z"}',
        '{"x": "q", "x": 2}',
        '{"x": 2, "x": "q", "x": "r"}',
    )
    assert [column.to_pylist() for column in found.columns] == [[2, None], [[], None], ["s", "z"]]
    assert found.reasons == [(2, "x is not INT: q"), (3, "x is not INT: q")]


def test_a_name_may_have_escapes_and_any_characters(parse: Parse) -> None:
    schema = '`a b` INT, `é"` INT'
    found = parse(
        schema,
        '{"a b": 1, "é\\"": 2}',
        '{"a\\u0020b": 1, "\\u00e9\\u0022": 2}',
    )
    assert found.reasons == []
    assert [column.to_pylist() for column in found.columns] == [[1, 1], [2, 2]]


def test_a_field_that_differs_only_in_case_is_reported(parse: Parse) -> None:
    found = parse(
        "delay INT, gate STRUCT<name: STRING, floor: INT>, é INT",
        '{"Delay": 1, "DELAY": 2, "gate": {"name": "B"}}',
        '{"Delay": "kept out", "delay": 2}',
        '{"gate": {"Name": "B", "floor": "one"}}',
        '{"gate": {"floor": 1, "Name": "B"}, "dela\\u0059": 1}',
        '{"É": 1, "Gate": 1, "delay": "x"}',
    )
    assert found.reasons == [
        (0, "the field Delay differs from delay only in case"),
        (2, 'gate is not STRUCT<name: STRING, floor: INT>: {"Name": "B", "floor": "one"}'),
        (
            3,
            "the field delaY differs from delay only in case; "
            "the field Name differs from gate.name only in case",
        ),
        (4, "delay is not INT: x; the field Gate differs from gate only in case"),
    ]
    assert found.columns[0].to_pylist() == [2]


def test_a_reason_shows_a_hundred_characters(parse: Parse) -> None:
    found = parse("x INT", '{"x": "' + "\\u00e9" * 200 + '"}', '{"x": ["' + "é" * 200 + '"]}')
    assert found.reasons == [
        (0, "x is not INT: " + "é" * 100),
        (1, 'x is not INT: ["' + "é" * 98),
    ]


def test_a_wrong_event_time_is_of_a_wrong_type_and_a_null_one_is_missing(parse: Parse) -> None:
    found = parse(
        "at TIMESTAMP, x INT",
        '{"at": "yesterday"}',
        '{"at": null}',
        "{}",
        '{"x": "wrong"}',
        event_time="AT",
    )
    assert found.reasons == [
        (0, "at is not TIMESTAMP: yesterday"),
        (1, "the event time at is missing"),
        (2, "the event time at is missing"),
        (3, "x is not INT: wrong"),
    ]


def test_columns_that_are_not_built_are_checked_all_the_same() -> None:
    parser = make("a STRING, b ARRAY<INT>, c INT", only=["c"])
    found = parser.parse(
        pa.array([b'{"a": "x", "b": [1], "c": 1}', b'{"b": ["x"]}', b'{"b": [2], "c": 2}'])
    )
    assert [column.to_pylist() for column in found.columns] == [[None] * 2, [None] * 2, [1, 2]]
    assert [str(column.type) for column in found.columns] == [
        "string",
        "list<element: int32>",
        "int32",
    ]
    assert found.reasons == [(1, 'b is not ARRAY<INT>: ["x"]')]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_any_array_of_text_is_parsed_slices_too(kind: pa.DataType) -> None:
    array = pa.array(["skipped", '{"x": 1}', None, '{"x": 2}', "x", "skipped"], kind)
    found = make("x INT").parse(array.slice(1, 4))
    assert found.columns[0].to_pylist() == [1, 2]
    assert found.reasons == [(1, "the value is null"), (3, NOT_AN_OBJECT)]
    assert found.accepted is not None
    assert found.accepted.to_pylist() == [True, False, True, False]


@pytest.mark.parametrize("values", [[], [None], [b"x"]])
def test_no_rows_have_the_types_of_the_schema(values: list[bytes | None]) -> None:
    ddl = "a STRING, b ARRAY<STRUCT<c: MAP<STRING, DECIMAL(5, 2)>>>, d TIMESTAMP, e BOOLEAN"
    found = make(ddl).parse(pa.array(values, pa.binary()))
    assert [len(column) for column in found.columns] == [0, 0, 0, 0]
    assert [str(column.type) for column in found.columns] == [
        "string",
        "list<element: struct<c: map<string, decimal128(5, 2)>>>",
        "timestamp[us, tz=UTC]",
        "bool",
    ]
    for column in found.columns:
        column.validate(full=True)


def test_an_array_of_another_type_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="int64"):
        make("x INT").parse(pa.array([1]))


# --- what counts as each type: docs/json-values.md as tables ---


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
