"""The section ``[console]`` of the settings. Must not know: pages, a server."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from tidemill.settings.section import Section

_FIELD = re.compile(r"[A-Za-z0-9._*?-]{1,249}:[A-Za-z0-9_$-]{1,100}(\.[A-Za-z0-9_-]{1,100}){0,15}")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def _each(pattern: re.Pattern[str], what: str, expected: str) -> AfterValidator:
    """Return a check of each word of a text with commas."""

    def check(text: str) -> str:
        for each in _words(text):
            if not pattern.fullmatch(each):
                raise ValueError(f"invalid {what} {each!r}: expected {expected}")
        return text

    return AfterValidator(check)


_FIELDS = _each(_FIELD, "field", "TOPIC:FIELD, e.g. users:card.number")
_MODULES = _each(_MODULE, "module", "a name like package.module")


class ConsoleSettings(Section):
    """The console: pages for people, at `/` of the gateway."""

    key = "console"

    enabled: bool = Field(True, description="Whether the gateway has the console.")
    read_only: bool = Field(
        False, description="Whether the console shows everything and changes nothing."
    )
    export: bool = Field(
        True, description="Whether records can be exported to a file from the console."
    )
    mask: Annotated[str, _FIELDS] = Field(
        "",
        description="Fields of values that the console hides, with commas: TOPIC:FIELD, where the "
        "topic can have * and ?, and the field is a path like card.number, $key or $value. Exports "
        "do not have them, and records of such topics are neither sent again nor queried by SQL.",
    )
    session_minutes: int = Field(
        720, ge=1, le=43_200, description="How long a login lasts, in minutes since the last use."
    )
    pages: Annotated[str, _MODULES] = Field(
        "",
        description="Python modules with more pages, with commas. They run in the gateway.",
    )

    def masked(self) -> list[tuple[str, str]]:
        """Return the topics, as patterns, and the fields that are hidden in them."""
        pairs = (each.partition(":") for each in _words(self.mask))
        return [(topic, name) for topic, _, name in pairs]

    def modules(self) -> list[str]:
        """Return the modules with more pages."""
        return _words(self.pages)


def _words(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]
