"""The syntax of JSON (RFC 8259): where a value ends, what a string or a number says.

Positions are those in a text. Must not know: columns, types.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_DEPTH = 1000
"""Most objects and arrays inside of each other, the outermost included. It is Spark's limit."""
MAX_NUMBER = 1000
"""Most characters of a number. It is Spark's limit."""


class MalformedError(Exception):
    """The text is not JSON, or passes a limit."""


class Number(NamedTuple):
    """A number: ``digits * 10 ** exponent``, exactly.

    Attributes:
        negative: Whether it has a minus sign.
        digits: Its digits without zeros at either end; empty for zero.
        exponent: The power of ten; 0 for zero.
    """

    negative: bool
    digits: str
    exponent: int


_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"true|false|null")
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))"
)
_TOKEN_OR_SPACE = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|[ \t\n\r]+')
_MEANS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def space_end(text: str, at: int) -> int:
    """Return the end of the white space at a position."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def string(text: str, at: int) -> tuple[str, int]:
    """Return the content and the end of the string at a position.

    Raises:
        MalformedError: It is not a string, or has half of a surrogate pair.
    """
    found = _STRING.match(text, at)
    if found is None:
        raise MalformedError
    end = found.end()
    content = text[at + 1 : end - 1]
    return (_ESCAPE.sub(_unescaped, content) if "\\" in content else content), end


def compact(text: str) -> str:
    """Return the text of a valid value without the white space between its parts."""
    return _TOKEN_OR_SPACE.sub(r"\1", text)


def _unescaped(found: re.Match[str]) -> str:
    high, low, code, letter = found.groups()
    if letter is not None:
        return _MEANS.get(letter, letter)
    if high is not None:
        return chr(0x10000 + (int(high, 16) - 0xD800 << 10) + int(low, 16) - 0xDC00)
    if code[0] in "dD" and code[1] in "89abcdefABCDEF":
        raise MalformedError
    return chr(int(code, 16))


def number_end(text: str, at: int) -> int:
    """Return the end of the number at a position.

    Raises:
        MalformedError: It is not a number, or is too long.
    """
    found = _NUMBER.match(text, at)
    if found is None or found.end() - at > MAX_NUMBER:
        raise MalformedError
    return found.end()


def number(text: str) -> Number:
    """Return what a number says.

    Args:
        text: The number. It may also have a plus sign, zeros in front, or no digit on one side of
            the point.
    """
    mantissa, _, power = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    digits = (whole + fraction).lstrip("0")
    short = digits.rstrip("0")
    exponent = int(power or 0) - len(fraction) + len(digits) - len(short) if short else 0
    return Number(text.startswith("-"), short, exponent)


def value_end(text: str, at: int, depth: int) -> int:
    """Return the end of the value at a position, of any kind.

    Args:
        text: The text.
        at: Where the value begins.
        depth: Number of objects and arrays around it.

    Raises:
        MalformedError: It is not JSON, or is nested too deep.
    """
    inside: list[str] = []  # closing brackets that are missing yet
    while True:
        at = space_end(text, at)
        opening = text[at : at + 1]
        if opening in ("{", "["):
            closing = "}" if opening == "{" else "]"
            if depth + len(inside) >= MAX_DEPTH:
                raise MalformedError
            at = space_end(text, at + 1)
            if text[at : at + 1] != closing:
                inside.append(closing)
                at = _name_end(text, at) if closing == "}" else at
                continue
            at += 1
        else:
            at = _scalar_end(text, at, opening)
        while inside:
            at = space_end(text, at)
            following = text[at : at + 1]
            at += 1
            if following == ",":
                at = _name_end(text, at) if inside[-1] == "}" else at
                break
            if following != inside.pop():
                raise MalformedError
        else:
            return at


def _name_end(text: str, at: int) -> int:
    """Return the end of a name and its colon."""
    at = space_end(text, string(text, space_end(text, at))[1])
    if text[at : at + 1] != ":":
        raise MalformedError
    return at + 1


def _scalar_end(text: str, at: int, first: str) -> int:
    if first == '"':
        return string(text, at)[1]
    if first and first in "tfn":
        found = _WORD.match(text, at)
        if found is None:
            raise MalformedError
        return found.end()
    return number_end(text, at)
