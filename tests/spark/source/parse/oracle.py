"""A parser of JSON objects that is slow and plainly right: Python's json, exact fractions, dates.

It gives the reasons without the text of a field, and does not know the limits of depth and size.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from tidemill.spark.source.parse import ParseSchema

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


class Reason(str):
    """The beginning of a reason."""


class JsonText:
    """The JSON text of a value: equal to a text of the same value without white space."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", str(other))
        return not re.search(r"\s", outside) and _DECODER.decode(str(other)) == self._value

    __hash__ = None  # type: ignore[assignment]


class _WrongTypeError(Exception):
    """A value is not of its type."""


class _OtherCaseError(Exception):
    """A field has the name of a missing one in other letters. The argument is the reason."""


def _refuse(text: str) -> Any:
    raise ValueError(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_int=Number, parse_float=Number, parse_constant=_refuse
)


def parse(value: bytes, schema: ParseSchema) -> list[Any]:
    """Return a row, or a list of ``Reason`` if the value is refused."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return [Reason("the value is not UTF-8 text")]
    start = len(text) - len(text.lstrip(" \t\n\r"))
    try:
        made, end = _DECODER.raw_decode(text, start)
        json.dumps(made, ensure_ascii=False).encode()  # half of a surrogate pair is refused
    except ValueError:
        made, end = None, 0
    if not isinstance(made, Pairs):
        return [Reason("the value is not a JSON object")]
    if text[end:].strip(" \t\n\r"):
        return [Reason("the value has more than its JSON object")]
    row, reasons = _row(made, schema)
    if not reasons and schema.event_time is not None:
        index = [column.name for column in schema.columns].index(schema.event_time)
        if row[index] is None:
            return [Reason(f"the event time {schema.event_time} is missing")]
    return reasons or row


def _row(made: Pairs, schema: ParseSchema) -> tuple[list[Any], list[Reason]]:
    row: list[Any] = []
    reasons: list[Reason] = []
    for column in schema.columns:
        found, reason = None, None
        try:
            for name, each in made:
                if name == column.name:
                    found = _convert(each, column.arrow, column.name, schema.timestamp_format)
            _check_case(made, column.name, column.name)
        except _WrongTypeError:
            reason = Reason(f"{column.name} is not {column.type}: ")
        except _OtherCaseError as error:
            reason = Reason(str(error))
        row.append(found)
        reasons += [] if reason is None else [reason]
    return row, reasons


def _check_case(made: Pairs, name: str, path: str) -> None:
    names = [each for each, _ in made]
    same = [each for each in names if each.encode().lower() == name.encode().lower()]
    if same and name not in names:
        raise _OtherCaseError(f"the field {same[0]} differs from {path} only in case")


def _convert(value: Any, kind: pa.DataType, path: str, times: str) -> Any:
    if value is None:
        return None
    try:
        if pa.types.is_struct(kind):
            return _struct(value, kind, path, times)
        if pa.types.is_map(kind):
            names = [name for name, _ in _expect(value, Pairs)]
            if len(set(names)) < len(names):
                raise _WrongTypeError
            return [(name, _convert(each, kind.item_type, path, times)) for name, each in value]
        if pa.types.is_list(kind):
            if isinstance(value, Pairs):
                raise _WrongTypeError
            return [_convert(each, kind.value_type, path, times) for each in _expect(value, list)]
        if pa.types.is_string(kind):
            return str(value) if isinstance(value, str) else JsonText(value)
        if pa.types.is_boolean(kind):
            return _expect(value, bool)
        if isinstance(value, Number):
            return _of_number(value, kind, times)
        return _of_string(_expect(value, str), kind)
    except (ValueError, OverflowError):
        raise _WrongTypeError from None


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
        raise _WrongTypeError
    return value


def _of_number(text: str, kind: pa.DataType, times: str) -> Any:
    if pa.types.is_integer(kind):
        exact, bound = _exact(text), 2 ** (kind.bit_width - 1)
        if exact.denominator != 1 or not -bound <= exact < bound:
            raise _WrongTypeError
        return int(exact)
    if pa.types.is_float32(kind):
        return _single(text)
    if pa.types.is_float64(kind):
        return _finite(float(text))
    if pa.types.is_decimal(kind):
        return _decimal(text, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None and times in _POWERS:
        return _moment(math.floor(_exact(text, _POWERS[times])), UTC)
    raise _WrongTypeError


def _of_string(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_floating(kind) and text in _SPECIAL:
        return _SPECIAL[text]
    if pa.types.is_decimal(kind):
        return _decimal(text, kind)
    if pa.types.is_binary(kind) and re.fullmatch(r"[A-Za-z0-9+/]*={0,2}", text):
        return base64.b64decode(text, validate=True)
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise _WrongTypeError
    found = _MOMENT.fullmatch(text.strip("".join(map(chr, range(33)))))
    if found is None:
        raise _WrongTypeError
    year, month, day, hour, minute, second = (int(each or 0) for each in found.groups()[:6])
    local = datetime(year, month, day, hour, minute, second)
    if pa.types.is_date(kind):
        _offset(found)
        return local.date()
    zoned = found[8] is not None or found[9] is not None
    if zoned and kind.tz is None:
        raise _WrongTypeError
    fraction = int((found[7] or "")[:6].ljust(6, "0"))
    exact = (local - datetime(1970, 1, 1)) // timedelta(microseconds=1) + fraction
    return _moment(exact - _offset(found) * 1_000_000, None if kind.tz is None else UTC)


def _offset(found: re.Match[str]) -> int:
    """Return the seconds of a zone."""
    h, m, s, hh, mm = found.groups()[9:]
    hours, minutes, seconds = (int(each or 0) for each in (h or hh, m or mm, s))
    total = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or total > 18 * 3600:
        raise _WrongTypeError
    return -total if found[9] == "-" else total


def _moment(microseconds: int, zone: Any) -> datetime:
    return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=microseconds)


def _exact(text: str, power: int = 0) -> Fraction:
    """Return a number times a power of ten; one that is beyond all types is brought closer."""
    found = _NUMBER.fullmatch(text)
    if found is None or len(text) > 1000:
        raise _WrongTypeError
    sign, whole, part, exponent = found.groups(default="")
    digits, scale = int(whole + part or 0), int(exponent or 0) + power - len(part)
    size = len(str(digits)) + scale
    scale -= max(size - 60, 0) + min(size + 60, 0)
    return Fraction(digits) * Fraction(10) ** scale * (-1 if sign == "-" else 1)


def _decimal(text: str, kind: pa.Decimal128Type) -> Decimal:
    scaled = _exact(text, kind.scale)
    value = math.floor(abs(scaled) + Fraction(1, 2))
    if value >= 10**kind.precision:
        raise _WrongTypeError
    digits = tuple(map(int, str(value)))
    return Decimal((int(scaled < 0 and value != 0), digits, -kind.scale))


def _finite(value: float) -> float:
    if math.isinf(value):
        raise _WrongTypeError
    return value


def _single(text: str) -> float:
    """Return the nearest float of 32 bits; of two, the one whose last bit is 0."""
    value = abs(_finite(float(text)))
    if value == 0:
        return float(text)
    size = min(value, 2.0**128 - 2.0**104)
    bits = struct.unpack("<i", struct.pack("<f", size))[0]
    exact = abs(Fraction(text))
    _, _, near = min(
        (abs(_of_bits(each) - exact), each & 1, each) for each in range(max(bits - 1, 0), bits + 2)
    )
    if near == 0x7F800000:
        raise _WrongTypeError
    return math.copysign(float(_of_bits(near)), float(text))


def _of_bits(bits: int) -> Fraction:
    if bits == 0x7F800000:
        return Fraction(2) ** 128
    return Fraction(struct.unpack("<f", struct.pack("<i", bits))[0])
