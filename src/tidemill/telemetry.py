"""Configures logging: one structured line per event, on stderr.

A module of the broker gets its logger with ``log = structlog.get_logger("tidemill.<folder>")`` and
calls ``log.warning("request refused", peer=peer, reason=str(error))``. The event is a constant
text, and everything that varies is a field, so that logs can be searched and counted.

Code in ``tidemill.spark`` uses the standard library's ``logging.getLogger("tidemill.spark")``
instead. It runs inside the user's own Python process and in Spark's workers, where the user
configures logging, and where structlog's configuration would not be theirs.

``configure`` sets the format. Until it is called, only warnings and errors are shown. This module
must not know anything else of tidemill.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "human", "logfmt", "json"]

_LEVELS: dict[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_STYLES = {"debug": "2", "info": "32", "warning": "33", "error": "31"}


def configure(
    level: Level = "info",
    style: Format = "auto",
    *,
    stream: TextIO | None = None,
    color: bool | None = None,
) -> None:
    """Set the level and the format of all lines.

    Args:
        level: the least severe events to write.
        style: ``human`` for people, ``logfmt`` or ``json`` for machines; ``auto`` is ``human`` on
            a terminal and ``logfmt`` elsewhere.
        stream: the stream to write to; None: stderr.
        color: whether ``human`` lines are colored; None: on a terminal only.
    """
    stream = sys.stderr if stream is None else stream
    on_terminal = stream.isatty()
    if style == "auto":
        style = "human" if on_terminal else "logfmt"
    renderers: dict[str, Any] = {
        "human": _HumanRenderer(on_terminal if color is None else color),
        "logfmt": structlog.processors.LogfmtRenderer(
            key_order=("timestamp", "level", "component", "event"), drop_missing=True
        ),
        "json": structlog.processors.JSONRenderer(default=str),
    }
    time_format = "%H:%M:%S.%f" if style == "human" else "iso"
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _component,
            structlog.processors.TimeStamper(fmt=time_format, utc=style != "human"),
            _exception_as_field,
            _without_empty_hint,
            _one_line if style == "logfmt" else _unchanged,
            renderers[style],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=_NamedLoggers(stream),
        cache_logger_on_first_use=False,
    )


Event = MutableMapping[str, Any]


class _NamedLogger:
    """Writes lines, and has the name that it was requested with.

    If a line can't be written (a closed terminal, a closed pipe), it is lost: a log must not make
    the work fail that it reports.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self.name = name

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(message + "\n")
            self._stream.flush()

    log = debug = info = warn = warning = error = critical = exception = fatal = failure = err = msg


class _NamedLoggers:
    """Makes loggers that have the name that they were requested with."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, name: str = "", *_: object) -> _NamedLogger:
        return _NamedLogger(self._stream, name.removeprefix("tidemill."))


def _component(logger: Any, _method: str, event: Event) -> Event:
    if logger is not None and logger.name:
        event.setdefault("component", logger.name)
    return event


def _unchanged(_logger: object, _method: str, event: Event) -> Event:
    return event


def _one_line(_logger: object, _method: str, event: Event) -> Event:
    """Replace control characters, which a client may have sent. logfmt escapes line feeds only."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in value)
    return event


def _exception_as_field(_logger: object, _method: str, event: Event) -> Event:
    """Replace an exception in ``error`` by its type and message, so that an event is one line."""
    error = event.get("error")
    if isinstance(error, BaseException):
        event["error"] = f"{type(error).__name__}: {error}"
    return event


def _without_empty_hint(_logger: object, _method: str, event: Event) -> Event:
    """Leave out the hint if the error has none."""
    if event.get("hint") == "":
        del event["hint"]
    return event


class _HumanRenderer:
    """Renders ``12:30:01.123 info kafka: listening host=127.0.0.1 port=9092``."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, _logger: object, _method: str, event: Event) -> str:
        level = event.pop("level")
        timestamp = str(event.pop("timestamp"))[:12]
        component, text = event.pop("component", ""), event.pop("event")
        fields = " ".join(f"{key}={_printable(value)}" for key, value in event.items())
        head = f"{timestamp} {level:<7} "
        if self._color:
            head = f"\x1b[2m{timestamp}\x1b[0m \x1b[{_STYLES.get(level, '0')}m{level:<7}\x1b[0m "
            fields = f"\x1b[2m{fields}\x1b[0m" if fields else ""
        where = f"{component}: " if component else ""
        return f"{head}{where}{text} {fields}".rstrip()


def _printable(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


configure("warning")
