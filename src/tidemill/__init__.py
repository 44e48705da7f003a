"""tidemill: durable partitioned logs behind the Kafka protocol, and Spark pipelines over them.

For Python programs: ``tidemill.Broker()`` starts a broker of one's own, ``tidemill.Gateway()`` a
gateway in front of a broker, and ``tidemill.read()`` reads a topic into Arrow, pandas, polars or
DuckDB.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Broker": "tidemill.local.broker",
    "Gateway": "tidemill.local.gateway",
    "Record": "tidemill.frames",
    "Records": "tidemill.frames",
    "read": "tidemill.frames",
}
"""Places of what is imported when it is first used, so that commands start fast. Type checkers read
``__init__.pyi``."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'tidemill' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
