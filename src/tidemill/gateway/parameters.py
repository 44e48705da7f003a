"""Reads the parameters of a URL. One that is unknown, doubled or malformed is refused."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from tidemill.gateway.errors import invalid
from tidemill.record_json import time_ms


class Parameters:
    """The query parameters of a request: ask for each of them, then call ``end``.

    Args:
        skip_empty: Whether those without a value are left out: a form sends all its fields.
        asked: Gets the name of each parameter that is asked for.
    """

    def __init__(
        self, request: Request, *, skip_empty: bool = False, asked: set[str] | None = None
    ) -> None:
        self._asked: set[str] = set() if asked is None else asked
        self._given: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            if value or not skip_empty:
                self._given.setdefault(name, []).append(value)

    def text(self, name: str) -> str | None:
        """Return a parameter, or None."""
        values = self.texts(name)
        if len(values) > 1:
            raise invalid(f"parameter {name} is given twice")
        return values[0] if values else None

    def texts(self, name: str) -> list[str]:
        """Return a parameter that can be given several times."""
        self._asked.add(name)
        values = self._given.pop(name, [])
        if any("\ufffd" in each for each in values):
            raise invalid(f"parameter {name} is not UTF-8")
        return values

    def word(self, name: str, words: Sequence[str], default: str) -> str:
        """Return one of some words."""
        value = self.text(name) or default
        if value not in words:
            raise invalid(f"invalid {name} {value[:100]!r}: use {' or '.join(filter(None, words))}")
        return value

    def number(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number, or None."""
        value = self.text(name)
        return None if value is None else number_of(name, value, least, most)

    def time_ms(self, name: str) -> int | None:
        """Return a time in milliseconds since the epoch: digits, or ISO 8601."""
        value = self.text(name)
        return None if value is None else time_of(name, value)

    def end(self) -> None:
        """Refuse parameters that were not asked for."""
        if self._given:
            raise invalid(f"unknown parameter {next(iter(self._given))[:100]!r}")


def number_of(name: str, value: str, least: int = 0, most: int = 2**63 - 1) -> int:
    """Return a whole number.

    Raises:
        HttpError: it is not one, or is out of the range (400).
    """
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise invalid(f"invalid {name} {value[:100]!r}: use a whole number")
    if not least <= int(value) <= most:
        raise invalid(f"invalid {name} {value}: use {least} to {most}")
    return int(value)


def time_of(name: str, value: str) -> int:
    """Return a time in milliseconds since the epoch: digits, or ISO 8601.

    Raises:
        HttpError: it is neither (400).
    """
    if value.isascii() and value.isdecimal() and len(value) < 19:
        return int(value)
    try:
        return time_ms(value)
    except ValueError:
        raise invalid(
            f"invalid {name} {value[:100]!r}: use ISO 8601, or milliseconds since 1970"
        ) from None
