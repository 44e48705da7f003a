"""Convert the values of a captured row to what the columns of a pipeline accept.

Decimals are strings, bytes are Base64, dates and times are ISO 8601 texts: such values stay as they
are. Kafka Connect's JSON converter writes dates as days and times as numbers, and says so in the
schema beside the payload; without a schema the column's type decides. Must not know: envelopes,
topics.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CONNECT = "org.apache.kafka.connect.data."
_DEBEZIUM = "io.debezium.time."
_DATES = (f"{_DEBEZIUM}Date", f"{_CONNECT}Date")
_NANOSECONDS = {
    f"{_DEBEZIUM}Timestamp": 1_000_000,
    f"{_CONNECT}Timestamp": 1_000_000,
    f"{_DEBEZIUM}MicroTimestamp": 1_000,
    f"{_DEBEZIUM}NanoTimestamp": 1,
}
"""Nanoseconds of a unit, for types that count from 1970."""
_DAY_NANOSECONDS = {
    f"{_DEBEZIUM}Time": 1_000_000,
    f"{_CONNECT}Time": 1_000_000,
    f"{_DEBEZIUM}MicroTime": 1_000,
    f"{_DEBEZIUM}NanoTime": 1,
}
"""Nanoseconds of a unit, for types that count from midnight."""
_EPOCHS = {"epoch_s": 1_000_000_000, "epoch_ms": 1_000_000, "epoch_us": 1_000}
_WHOLE = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_FRACTIONS = frozenset({"FLOAT", "DOUBLE"})
_TIMES = frozenset({"TIMESTAMP", "TIMESTAMP_NTZ"})

_UNAVAILABLE = ("__debezium_unavailable_value", "__tidemill_unavailable_value")
UNAVAILABLE = frozenset(
    {*_UNAVAILABLE, *(base64.b64encode(text.encode()).decode() for text in _UNAVAILABLE)}
)
"""Texts for a large value of PostgreSQL that an update did not change, also as bytes in Base64."""


class ValueRefusedError(Exception):
    """A value can't be converted. The argument is the reason."""


def convert(value: Any, kind: str, declared: Mapping[str, Any] | None, times: str) -> Any:
    """Return a value as JSON that a column's type accepts.

    Args:
        value: the value as it is in the payload.
        kind: Spark's name of the column's type, for example ``ARRAY<DATE>``.
        declared: the field in the record's schema, or None.
        times: what a number in a TIMESTAMP column means if no schema says so: ``iso`` (refused),
            ``epoch_s``, ``epoch_ms`` or ``epoch_us``.

    Raises:
        ValueRefusedError: the value does not fit what its schema says.
    """
    if value is None:
        return None
    if isinstance(value, list) and kind.startswith("ARRAY<"):
        items = None if declared is None else declared.get("items")
        inner = kind[len("ARRAY<") : -1].strip()
        return [convert(each, inner, _mapping(items), times) for each in value]
    name = None if declared is None else declared.get("name")
    base = kind.partition("(")[0].upper()
    try:
        if isinstance(name, str):
            return _named(value, name, base, declared or {})
        if isinstance(value, int) and not isinstance(value, bool):
            return _number(value, base, times)
    except (ValueError, OverflowError, TypeError, binascii.Error):
        raise ValueRefusedError(f"{value!r} is not of the type {name or kind}"[:200]) from None
    return value


def _number(value: int, base: str, times: str) -> Any:
    if base == "DATE":
        return _date(value)
    if base not in _TIMES:
        return value
    if times not in _EPOCHS:
        raise ValueRefusedError(
            f"{value} is a number in a {base} column, and neither a schema nor timestamp_format "
            "says what it counts"
        )
    return _moment(value * _EPOCHS[times], base)


def _named(value: Any, name: str, base: str, declared: Mapping[str, Any]) -> Any:
    """Convert a value whose type has a name in its schema."""
    if name == f"{_CONNECT}Decimal":
        scale = int(_mapping(declared.get("parameters")).get("scale", 0))
        return _decimal(value, scale, base)
    if name == "io.debezium.data.VariableScaleDecimal" and isinstance(value, dict):
        return _decimal(value["value"], int(value["scale"]), base)
    if base in _WHOLE or isinstance(value, str):
        return value
    if name in _DATES:
        return _date(value)
    if name in _NANOSECONDS:
        return _moment(value * _NANOSECONDS[name], base)
    if name in _DAY_NANOSECONDS:
        return _time_of_day(value * _DAY_NANOSECONDS[name])
    return value


def _decimal(value: Any, scale: int, base: str) -> Any:
    """Return a decimal; Kafka Connect writes it as the Base64 of a big-endian integer."""
    if isinstance(value, str):
        raw = base64.b64decode(value, validate=True)
        if len(raw) > 500 or abs(scale) > 1000:  # PostgreSQL's largest scale is 1000
            raise ValueError(value)
        value = format(_exact(raw, scale), "f")
    if base in _FRACTIONS:
        return float(value)
    if base in _WHOLE and Decimal(value) == int(Decimal(value)):
        return int(Decimal(value))
    return value


def _exact(raw: bytes, scale: int) -> Decimal:
    """Return a decimal without rounding it to the digits of the current context."""
    number = int.from_bytes(raw, "big", signed=True)
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -scale))


def _date(days: int) -> str:
    return date.fromordinal(days + _EPOCH_DAY).isoformat()


def _moment(nanoseconds: int, base: str) -> str:
    """Return a time as text; with a zone for TIMESTAMP only. Nanoseconds are cut off."""
    text = iso_time(nanoseconds // 1000)
    return text if base == "TIMESTAMP" else text.removesuffix("Z")


def iso_time(microseconds: int) -> str:
    """Return a time in microseconds since 1970 as ISO 8601 text in UTC.

    Raises:
        OverflowError: it is outside of the years 1 to 9999.
    """
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _time_of_day(nanoseconds: int) -> str:
    if not 0 <= nanoseconds <= 86_400_000_000_000:
        raise ValueError(nanoseconds)
    seconds, fraction = divmod(nanoseconds, 1_000_000_000)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:09}".rstrip("0") if fraction else text


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
