"""Decimals of the binary log, as exact text.

Must not know columns or rows. Source: MySQL source documentation, "strings/decimal.cc",
``decimal2bin``: groups of nine digits take four bytes, big-endian; negative numbers are inverted;
the highest bit of the first byte is the inverted sign.
"""

from __future__ import annotations

_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DIGITS = 9


def decimal_bytes(precision: int, decimals: int) -> int:
    """Return the size of a DECIMAL(precision, decimals) in bytes."""
    whole = precision - decimals
    return (
        whole // _DIGITS * 4
        + _BYTES[whole % _DIGITS]
        + decimals // _DIGITS * 4
        + _BYTES[decimals % _DIGITS]
    )


def decode_decimal(data: bytes, precision: int, decimals: int) -> str:
    """Return the number as text, with exactly ``decimals`` digits behind the point."""
    if precision - decimals <= _DIGITS and 0 < decimals <= _DIGITS and precision > decimals:
        return _short(data, decimals)
    is_negative = not data[0] & 0x80
    raw = bytearray(data)
    raw[0] ^= 0x80
    if is_negative:
        raw = bytearray(each ^ 0xFF for each in raw)
    whole = precision - decimals
    position = 0

    def group(digits: int) -> str:
        nonlocal position
        size = _BYTES[digits]
        value = int.from_bytes(raw[position : position + size], "big")
        position += size
        return f"{value:0{digits}d}"

    sizes = [whole % _DIGITS] if whole % _DIGITS else []
    integral = "".join(group(each) for each in [*sizes, *[_DIGITS] * (whole // _DIGITS)])
    sizes = [decimals % _DIGITS] if decimals % _DIGITS else []
    fraction = "".join(group(each) for each in [*[_DIGITS] * (decimals // _DIGITS), *sizes])
    text = integral.lstrip("0") or "0"
    if decimals:
        text += "." + fraction
    return "-" + text if is_negative else text


def _short(data: bytes, decimals: int) -> str:
    """Return a number with at most nine digits on each side of the point: the usual case."""
    bits = 8 * len(data)
    value = int.from_bytes(data, "big") ^ 1 << bits - 1
    sign = ""
    if value >> bits - 1:  # the sign is inverted
        sign, value = "-", value ^ (1 << bits) - 1
    size = 8 * _BYTES[decimals]
    return f"{sign}{value >> size}.{value & (1 << size) - 1:0{decimals}d}"
