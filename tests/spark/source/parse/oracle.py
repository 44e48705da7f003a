"""A parser of JSON objects that is slow and plainly right: Python's json, exact fractions, dates.

It gives the reasons without the text of a field, and does not know the limits of depth and size.
"""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from tidemill.spark.source.parse import ParsedColumn, ParseSchema

_NUMBER = re.compile(r"([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_MOMENT = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ](\d\d?)(?::(\d\d?)(?::(\d\d?)(?:\.(\d+))?)?)? *(?:(Z|UTC|GMT)"
    r"|([+-])(?:(\d\d?)(?::(\d\d)(?::(\d\d))?)?|(\d\d)(\d\d)))?)?",
    re.ASCII,
)
_SPECIAL = {"NaN": math.nan} | {
    f"{sign}{name}": float(f"{sign}inf")
    for sign, name in (
        ("", "Infinity"),
        ("+", "Infinity"),
        ("-", "Infinity"),
        ("+", "INF"),
        ("-", "INF"),
    )
}
_POWERS = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0}


class Number(str):
    """A number as it is written."""


class Pairs(list[tuple[str, Any]]):
    """An object: its fields in order, also those that occur twice."""


class JsonText:
    """The JSON text of a value: equal to a text of the same value without white space."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(other))
        return not re.search(r"\s", outside) and _DECODER.decode(str(other)) == self._value

    __hash__ = None  # type: ignore[assignment]


class RefusedError(Exception):
    """A value is refused. The arguments are the beginnings of the reasons; none: a wrong type."""


def _refuse(text: str) -> Any:
    raise ValueError(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_int=Number, parse_float=Number, parse_constant=_refuse
)


def parse(value: bytes, schema: ParseSchema) -> list[Any]:
    """Return a row.

    Raises:
        RefusedError: the value is refused.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise RefusedError("the value is not UTF-8 text") from None
    try:
        made, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip(" \t\n\r")))
        json.dumps(made, ensure_ascii=False).encode()  # half of a surrogate pair is refused
    except ValueError:
        made, end = None, 0
    if not isinstance(made, Pairs):
        raise RefusedError("the value is not a JSON object")
    if text[end:].strip(" \t\n\r"):
        raise RefusedError("the value has more than its JSON object")
    row: dict[str, Any] = {}
    reasons: list[str] = []
    for column in schema.columns:
        try:
            row[column.name] = _column(made, column, schema.timestamp_format)
        except RefusedError as error:
            reasons += error.args or (f"{column.name} is not {column.type}: ",)
    if not reasons and schema.event_time is not None and row[schema.event_time] is None:
        reasons = [f"the event time {schema.event_time} is missing"]
    if reasons:
        raise RefusedError(*reasons)
    return list(row.values())


def _column(made: Pairs, column: ParsedColumn, times: str) -> Any:
    found = None
    for name, each in made:
        if name == column.name:
            found = _convert(each, column.arrow, column.name, times)
    _check_case(made, column.name, column.name)
    return found


def _check_case(made: Pairs, name: str, path: str) -> None:
    names = [each for each, _ in made]
    same = [each for each in names if each.encode().lower() == name.encode().lower()]
    if same and name not in names:
        raise RefusedError(f"the field {same[0]} differs from {path} only in case")


def _convert(value: Any, kind: pa.DataType, path: str, times: str) -> Any:
    if value is None:
        return None
    try:
        if pa.types.is_struct(kind):
            return _struct(value, kind, path, times)
        if pa.types.is_map(kind):
            names = [name for name, _ in _expect(value, Pairs)]
            if len(set(names)) < len(names):
                raise RefusedError
            return [(name, _convert(each, kind.item_type, path, times)) for name, each in value]
        if pa.types.is_list(kind):
            if isinstance(value, Pairs):
                raise RefusedError
            return [_convert(each, kind.value_type, path, times) for each in _expect(value, list)]
        if pa.types.is_string(kind):
            return str(value) if isinstance(value, str) else JsonText(value)
        if pa.types.is_boolean(kind):
            return _expect(value, bool)
        if isinstance(value, Number):
            return _of_number(value, kind, times)
        return _of_string(_expect(value, str), kind)
    except (ValueError, OverflowError):
        raise RefusedError from None


def _struct(value: Any, kind: pa.StructType, path: str, times: str) -> dict[str, Any]:
    members = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    made = dict.fromkeys(members)
    for name, each in _expect(value, Pairs):
        if name in members:
            made[name] = _convert(each, members[name], f"{path}.{name}", times)
    for name in members:
        _check_case(value, name, f"{path}.{name}")
    return made


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise RefusedError
    return value


def _of_number(text: str, kind: pa.DataType, times: str) -> Any:
    if pa.types.is_integer(kind):
        exact, bound = _exact(text), 2 ** (kind.bit_width - 1)
        if exact.denominator != 1 or not -bound <= exact < bound:
            raise RefusedError
        return int(exact)
    if pa.types.is_float32(kind):
        return _finite(pa.scalar(text).cast(kind).as_py())
    if pa.types.is_float64(kind):
        return _finite(float(text))
    if pa.types.is_decimal(kind):
        return _decimal(text, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None and times in _POWERS:
        return _moment(math.floor(_exact(text, _POWERS[times])), UTC)
    raise RefusedError


def _of_string(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind) and text in _SPECIAL:
        return _SPECIAL[text]
    if pa.types.is_decimal(kind):
        return _decimal(text, kind)
    if pa.types.is_binary(kind) and re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", text):
        return base64.b64decode(text, validate=True)
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise RefusedError
    found = _MOMENT.fullmatch(text.strip("".join(map(chr, range(33)))))
    if found is None:
        raise RefusedError
    year, month, day, hour, minute, second = (int(each or 0) for each in found.groups()[:6])
    local = datetime(year, month, day, hour, minute, second)
    if pa.types.is_date(kind):
        _offset(found)
        return local.date()
    zoned = found[8] is not None or found[9] is not None
    if zoned and kind.tz is None:
        raise RefusedError
    fraction = int((found[7] or "")[:6].ljust(6, "0"))
    exact = (local - datetime(1970, 1, 1)) // timedelta(microseconds=1) + fraction
    return _moment(exact - _offset(found) * 1_000_000, None if kind.tz is None else UTC)


def _offset(found: re.Match[str]) -> int:
    """Return the seconds of a zone."""
    h, m, s, hh, mm = found.groups()[9:]
    hours, minutes, seconds = (int(each or 0) for each in (h or hh, m or mm, s))
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > 18 * 3600:
        raise RefusedError
    return -total if found[9] == "-" else total


def _moment(microseconds: int, zone: Any) -> datetime:
    return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=microseconds)


def _exact(text: str, power: int = 0) -> Fraction:
    """Return a number times a power of ten; one that is beyond all types is brought closer."""
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > 1000:
        raise RefusedError
    sign, whole, part, exponent = found.groups(default="")
    digits, scale = int(whole + part or 0), int(exponent or 0) + power - len(part)
    size = len(str(digits)) + scale
    scale -= max(size - 60, 0) + min(size + 60, 0)
    return Fraction(digits) * Fraction(10) ** scale * (-1 if sign == "-" else 1)


def _decimal(text: str, kind: pa.Decimal128Type) -> Decimal:
    scaled = _exact(text, kind.scale)
    value = math.floor(abs(scaled) + Fraction(1, 2))
    if value >= 10**kind.precision:
        raise RefusedError
    digits = tuple(map(int, str(value)))
    return Decimal((int(scaled < 0 and value != 0), digits, -kind.scale))


def _finite(value: float) -> float:
    if math.isinf(value):
        raise RefusedError
    return value
