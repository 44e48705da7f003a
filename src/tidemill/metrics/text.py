"""Writes metrics as text: Prometheus's format 0.0.4 and OpenMetrics 1.0.

The text comes in pieces, so that an event loop can do other work between two of them. Sources:
https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemill.metrics.definition import Metric
from tidemill.metrics.registry import Family, Histogram, cumulative

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MOST_BYTES = 32 << 20
"""Largest text. What follows is left out, and ``TRUNCATED`` says so."""
TRUNCATED = "# the text was cut: it has more than 32 MiB\n"
ROWS_TOGETHER = 32
MOST_ESCAPED = 20_000

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def content_type(accept: str) -> str:
    """Return the format that a client asks for in its header Accept.

    OpenMetrics if the client names it and does not refuse it, else Prometheus's text, which each
    scraper understands.
    """
    for part in accept.lower().split(","):
        kind, _, parameters = part.partition(";")
        if kind.strip() == "application/openmetrics-text":
            quality = parameters.replace(" ", "").partition("q=")[2].partition(";")[0]
            return PROMETHEUS if quality in ("0", "0.0", "0.00", "0.000") else OPENMETRICS
    return PROMETHEUS


def write(families: Iterable[Family], content: str) -> Iterator[str]:
    """Yield the text in pieces of some lines. An empty piece is a place to pause.

    Args:
        content: ``PROMETHEUS`` or ``OPENMETRICS``.
    """
    is_open = content == OPENMETRICS
    size = 0
    escaped = _Escaped()
    for metric, rows in families:
        head = _head(metric, is_open)
        line = _template(metric)
        lines: list[str] = []
        for labels, value in rows:
            if isinstance(value, Histogram):
                lines += _histogram(metric, [escaped[each] for each in labels], value)
            else:
                number = value if type(value) is int else _number(value)
                lines.append(line % (*[escaped[each] for each in labels], number))
            if len(lines) >= ROWS_TOGETHER:
                piece = head + "".join(lines)
                size += len(piece)
                if size > MOST_BYTES:
                    yield "# EOF\n" if is_open else TRUNCATED
                    return
                yield piece
                head = ""
                lines.clear()
        piece = head + "".join(lines) if lines else ""
        size += len(piece)
        yield piece
    if is_open:
        yield "# EOF\n"


class _Escaped(dict[str, str]):
    """Values of labels as the text has them. Most of them are needed many times."""

    def __missing__(self, value: str) -> str:
        if len(self) >= MOST_ESCAPED:
            self.clear()
        found = self[value] = value.translate(_ESCAPES)
        return found


def _head(metric: Metric, is_open: bool) -> str:
    name = metric.family if is_open else metric.name
    return f"# HELP {name} {metric.help.translate(_HELP_ESCAPES)}\n# TYPE {name} {metric.kind}\n"


def _template(metric: Metric) -> str:
    labels = ",".join(f'{name}="%s"' for name in metric.labels)
    return f"{metric.name}{{{labels}}} %s\n" if labels else f"{metric.name} %s\n"


def _histogram(metric: Metric, values: list[str], value: Histogram) -> Iterator[str]:
    labels = ",".join(f'{n}="{each}"' for n, each in zip(metric.labels, values, strict=True))
    comma = "," if labels else ""
    total = 0
    for bound, total in cumulative(value):
        yield f'{metric.name}_bucket{{{labels}{comma}le="{bound}"}} {total}\n'
    braces = f"{{{labels}}}" if labels else ""
    yield f"{metric.name}_sum{braces} {_number(value.sum)}\n"
    yield f"{metric.name}_count{braces} {total}\n"


def _number(value: float) -> str:
    """Return a number as both formats have it."""
    if isinstance(value, int):
        return str(int(value))  # a bool is an int
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
