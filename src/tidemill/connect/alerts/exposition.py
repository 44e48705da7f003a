"""Read metrics in Prometheus's text format 0.0.4 and in OpenMetrics 1.0.

Lines that are malformed are left out: one of them must not hide the others. Source:
https://prometheus.io/docs/instrumenting/exposition_formats/. Must not know: HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n"}


class Series(NamedTuple):
    """The value of one series."""

    name: str
    labels: dict[str, str]
    value: float


def names_in(text: str) -> set[str]:
    """Return the names of all series in a text."""
    found = (_NAME.match(line) for line in text.split("\n"))
    return {each[0] for each in found if each is not None}


def series_in(text: str, wanted: Collection[str]) -> Iterator[Series]:
    """Yield the series with some names."""
    for line in text.split("\n"):  # not splitlines: a label can contain what else ends lines
        name = _NAME.match(line)
        if name is None or name[0] not in wanted:
            continue
        labels: dict[str, str] = {}
        at = name.end()
        if line[at : at + 1] == "{":
            at += 1
            while found := _LABEL.match(line, at):
                labels[found[1]] = _ESCAPE.sub(_unescape, found[2])
                at = found.end()
            if line[at : at + 1] != "}":
                continue
            at += 1
        try:
            yield Series(name[0], labels, float(line[at:].split(None, 1)[0]))
        except (ValueError, IndexError):
            continue


def _unescape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[1], found[1])
