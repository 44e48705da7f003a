"""OpenTelemetry in this process, with the spans that have ended in a list."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tidemill import tracing

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
"""A context in the header traceparent."""
TRACE_ID = PARENT[3:35]


@contextlib.contextmanager
def recorded() -> Iterator[Any]:
    """Set up OpenTelemetry; yield a function that returns the spans by name."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = sdk.TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with (
        mock.patch.object(trace, "get_tracer_provider", return_value=provider),
        mock.patch.object(tracing, "_none_until", 0.0),
    ):
        yield lambda: {each.name: each for each in exporter.get_finished_spans()}
    provider.shutdown()


def trace_of(span: Any) -> str:
    """Return the id of a span's trace, as headers have it."""
    return f"{span.context.trace_id:032x}"
