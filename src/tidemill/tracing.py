"""Traces: the context in headers of requests and records, and spans of OpenTelemetry.

A context is passed on whatever is installed. Spans are made where the package opentelemetry-api is
installed and a tracer provider is set, by ``opentelemetry-instrument`` for example. Source: W3C
Trace Context (https://www.w3.org/TR/trace-context/). Must not know: any floor.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from tidemill import __version__

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_LONGEST_STATE = 512
_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)
_STATE = re.compile(r"[ -~]*")

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Context = Mapping[str, str]
"""The headers that carry a context: ``traceparent``, and ``tracestate`` if there is one."""


def context_in(headers: Iterable[tuple[str, bytes | str | None]]) -> dict[str, str]:
    """Return the context that headers carry; empty if there is none, or it is malformed.

    Args:
        headers: pairs of name and value, as records and requests have them.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in (TRACEPARENT, TRACESTATE) and value and lower not in found:
            text = value if isinstance(value, str) else value.decode("latin-1")
            found[lower] = text.strip()
    parent = found.get(TRACEPARENT, "")
    is_valid = _PARENT.fullmatch(parent) and (parent[:2] != "00" or len(parent) == 55)
    if not is_valid or len(parent) > _LONGEST_STATE or not _STATE.fullmatch(parent):
        return {}
    state = found.get(TRACESTATE, "")
    if not state or len(state) > _LONGEST_STATE or not _STATE.fullmatch(state):
        found.pop(TRACESTATE, None)
    return found


def with_context(
    headers: Iterable[tuple[str, bytes | None]], context: Context
) -> list[tuple[str, bytes | None]]:
    """Return headers of a record with a context, unless they carry one already."""
    made = list(headers)
    if not context or any(name == TRACEPARENT for name, _ in made):
        return made
    return [*made, *((name, text.encode("latin-1")) for name, text in context.items())]


@dataclass(slots=True)
class Span:
    """A span under way, or nothing if none is made.

    Attributes:
        context: what is passed on: of this span, or of its parent if none is made.
    """

    context: Context
    _made: Any = field(default=None, repr=False)

    def set(self, name: str, value: str | float | bool) -> None:
        """Add an attribute."""
        if self._made is not None:
            self._made.set_attribute(name, value)

    def fail(self, text: str) -> None:
        """Note that the work has failed."""
        if self._made is not None:
            status = _api().trace.Status(_api().trace.StatusCode.ERROR, text[:500])
            self._made.set_status(status)


_NONE = contextlib.nullcontext(Span({}))


def span(
    name: str,
    kind: Kind = "internal",
    parent: Context | None = None,
    **attributes: str | float | bool,
) -> AbstractContextManager[Span]:
    """Make a span of what runs inside. An error that is raised there is recorded.

    Args:
        parent: the context that a header carries; None: that of the span around it.
        attributes: with ``__`` for a dot.
    """
    tracer = _tracer()
    if tracer is None:  # most often: without a generator, which takes 1 µs
        return contextlib.nullcontext(Span(parent)) if parent else _NONE
    return _made(tracer, name, kind, parent, attributes)


@contextlib.contextmanager
def _made(
    tracer: Any,
    name: str,
    kind: Kind,
    parent: Context | None,
    attributes: Mapping[str, str | float | bool],
) -> Iterator[Span]:
    api = _api()
    context = None if parent is None else api.propagator.extract(parent, api.empty)
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    kinds = api.trace.SpanKind
    with tracer.start_as_current_span(
        name, context=context, kind=kinds[kind.upper()], attributes=named
    ) as made:
        carried: dict[str, str] = {}
        api.propagator.inject(carried)
        yield Span(carried, made)


def record(name: str, start_ns: int, end_ns: int, **attributes: str | float | bool) -> None:
    """Make a span of work that has ended.

    Args:
        start_ns, end_ns: nanoseconds since the epoch.
        attributes: with ``__`` for a dot.
    """
    tracer = _tracer()
    if tracer is not None:
        named = {key.replace("__", "."): value for key, value in attributes.items()}
        made = tracer.start_span(name, _api().empty, attributes=named, start_time=start_ns)
        made.end(end_ns)


@dataclass(frozen=True, slots=True)
class _Api:
    """The names of the package opentelemetry-api that are used."""

    trace: Any
    propagator: Any
    empty: Any


@functools.cache
def _find_api() -> _Api | None:
    try:
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return None
    return _Api(trace, TraceContextTextMapPropagator(), Context())


def _api() -> _Api:
    found = _find_api()
    assert found is not None
    return found


_LOOK_S = 1.0
_known: tuple[Any, Any] = None, None
_none_until = 0.0


def _tracer() -> Any:
    """Return the tracer; None if the package is missing, or nothing takes its spans.

    A provider that is set later is noticed within a second: each time that it is asked for one,
    OpenTelemetry reads a variable of the environment, which takes a microsecond.
    """
    global _known, _none_until
    api = _find_api()
    if api is None:
        return None
    now = time.monotonic()
    if now < _none_until:
        return None
    provider = api.trace.get_tracer_provider()
    if isinstance(provider, api.trace.ProxyTracerProvider):
        _none_until = now + _LOOK_S
        return None
    if _known[0] is not provider:
        _known = provider, provider.get_tracer("tidemill", __version__)
    return _known[1]
