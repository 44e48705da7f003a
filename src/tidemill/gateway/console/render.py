"""Renders pages: the environment of Jinja, and how numbers, times and graphs are written.

Everything is escaped. Must not know: requests, Kafka.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tidemill.gateway.console.contract import address, command_line

TEMPLATES = Path(__file__).parent / "templates"
GRAPH_WIDTH, GRAPH_HEIGHT = 300.0, 48.0
NONE = "\N{EN DASH}"


def number(value: float | None) -> str:
    """Return a number with groups of digits; a dash for None."""
    if value is None:
        return NONE
    if isinstance(value, float) and not value.is_integer() and abs(value) < 100:
        return f"{value:,.1f}"
    return f"{value:,.0f}"


def size(value: float | None) -> str:
    """Return bytes in the unit that fits (powers of 1024)."""
    if value is None or value < 0:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError


def duration(seconds: float | None) -> str:
    """Return a length of time with its two largest units."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    parts: list[str] = []
    left = int(seconds)
    for unit, length in units:
        if left >= length or parts:
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2])


def ms(value: float | None) -> str:
    """Return a length of time that is given in milliseconds."""
    return duration(None if value is None else value / 1000)


def moment(time_ms: float | None) -> str:
    """Return a time in UTC, to the millisecond if it has any."""
    if time_ms is None or not -6e13 < time_ms < 2e14:
        return NONE
    found = datetime.fromtimestamp(time_ms / 1000, UTC)
    precision = "milliseconds" if time_ms % 1000 else "seconds"
    return found.isoformat(" ", precision).replace("+00:00", "")


def clock(time_ms: float | None) -> str:
    """Return the hour and the minute of a time in UTC."""
    return moment(time_ms)[11:16] or NONE


def ago(time_ms: float | None, now_ms: float | None = None) -> str:
    """Return how long ago a time was."""
    if time_ms is None:
        return NONE
    now = time.time() * 1000 if now_ms is None else now_ms
    return f"{duration(max(0.0, (now - time_ms) / 1000))} ago"


def points(values: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return what a graph of pairs of time and value needs: lines, the largest value, the last one.

    Coordinates are within ``GRAPH_WIDTH`` and ``GRAPH_HEIGHT``. Values that are not finite are left
    out.
    """
    known = [(x, y) for x, y in values if math.isfinite(y)]
    if len(known) < 2:  # one point is not a line
        return {"line": "", "area": "", "most": 0.0, "last": 0.0, "from": None, "to": None}
    first, last = known[0][0], known[-1][0]
    most = max(y for _, y in known)
    span, top = max(1e-9, last - first), most or 1.0
    at = [
        (
            (x - first) / span * GRAPH_WIDTH,
            2 + (GRAPH_HEIGHT - 4) * (1 - max(0.0, y) / top),
        )
        for x, y in known
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    area = f"{at[0][0]:.1f},{GRAPH_HEIGHT} {line} {at[-1][0]:.1f},{GRAPH_HEIGHT}"
    return {
        "line": line,
        "area": area,
        "most": most,
        "last": known[-1][1],
        "from": first * 1000,
        "to": last * 1000,
    }


_FILTERS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (number, size, duration, ms, moment, clock, ago, points)
}


def figure_of(form: str, value: float | None) -> str:
    """Return a figure of a status.

    Args:
        form: The name of the filter that writes it.
    """
    if form == "moment":
        value = value or None  # 0: there is none
    return str(_FILTERS[form](value))


class Renderer:
    """Renders templates.

    Args:
        folders: More folders with templates, of pages that come from elsewhere.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._environment = Environment(
            loader=FileSystemLoader([TEMPLATES, *folders]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(_FILTERS)
        self._environment.globals.update(
            address=address, command_line=command_line, plural=plural, figure_of=figure_of
        )
        # Blocks are also rendered alone, where what their template imports is not there.
        self._environment.globals["ui"] = self._environment.get_template("macros.html").module

    def page(self, template: str, context: Mapping[str, Any]) -> str:
        """Return a page."""
        return self._environment.get_template(template).render(context)

    def block(self, template: str, name: str, context: Mapping[str, Any]) -> str:
        """Return one block of a page."""
        found = self._environment.get_template(template)
        return "".join(found.blocks[name](found.new_context(dict(context))))

    def has_block(self, template: str, name: str) -> bool:
        """Return whether a template has a block of its own."""
        return name in self._environment.get_template(template).blocks


def plural(count: int, word: str) -> str:
    """Return a number with its noun."""
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def some_of(one: str, several: str, names: Sequence[str]) -> str:
    """Return names with the word for them, at most three: ``topics a, b, c and 2 more``."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{one if len(names) == 1 else several} {', '.join(names[:3])}{more}"


def hidden(name: str, value: str) -> Markup:
    """Return a field of a form that is not shown."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(name, value)
