"""Logging: one structured line per event, to stderr. Knows nothing else of tidemill.

Code that logs asks once per module: ``log = get_logger("kafka")`` (structlog's own
``get_logger("kafka")`` is the same); then
``log.warning("request refused", peer=peer, reason=str(error))``. Events are constant texts, all
that varies goes into fields, so that logs can be searched and counted. ``configure`` decides the
form; before it is called only warnings and errors are shown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, Protocol, TextIO, cast

# structlog imports rich for its tracebacks when rich is there. We never print one, and the import
# would cost the broker 30 ms at start and 4 MB for good.
_RICH = sys.modules.get("rich")
if _RICH is None:
    sys.modules["rich"] = cast(Any, None)
try:
    import structlog
finally:
    if _RICH is None:
        sys.modules.pop("rich", None)

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "human", "logfmt", "json"]

_LEVELS: dict[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_STYLES = {"debug": "2", "info": "32", "warning": "33", "error": "31"}


class Logger(Protocol):
    """What the rest of the program may do with a log."""

    def debug(self, event: str, /, **fields: object) -> None: ...
    def info(self, event: str, /, **fields: object) -> None: ...
    def warning(self, event: str, /, **fields: object) -> None: ...
    def error(self, event: str, /, **fields: object) -> None: ...


def get_logger(component: str) -> Logger:
    """A logger whose lines carry ``component``; may be made before ``configure`` is called."""
    return cast(Logger, structlog.get_logger(component))


def configure(
    level: Level = "info",
    style: Format = "auto",
    *,
    stream: TextIO | None = None,
    color: bool | None = None,
) -> None:
    """Set level and form of all lines.

    Args:
        level: least severe event that is written.
        style: ``human`` for people, ``logfmt`` or ``json`` for machines; ``auto`` is human on a
            terminal and logfmt elsewhere.
        stream: where to; None is stderr.
        color: None means on a terminal.
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
            _one_line if style == "logfmt" else _unchanged,
            renderers[style],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=_NamedLoggers(stream),
        cache_logger_on_first_use=False,
    )


Event = MutableMapping[str, Any]


class _NamedLogger:
    """Writes lines, and remembers the name it was asked for.

    A log that can't be written (the terminal was closed, the reader of a pipe has gone) must not
    fail the work it tells of: such a line is lost.
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
    """Makes loggers that remember the name they were asked for."""

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
    """logfmt escapes a line feed, but no other control character that a client may have sent."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in value)
    return event


def _exception_as_field(_logger: object, _method: str, event: Event) -> Event:
    """An exception in ``error`` becomes its type and message: one event stays one line."""
    error = event.get("error")
    if isinstance(error, BaseException):
        event["error"] = f"{type(error).__name__}: {error}"
    return event


class _HumanRenderer:
    """``12:30:01.123 info kafka: listening host=127.0.0.1 port=9092``"""

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
