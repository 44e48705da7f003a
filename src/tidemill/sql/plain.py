"""Values of a result as JSON has them. Must not know: DuckDB, where they go."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any


def plain(value: Any) -> Any:
    """Return a value that JSON has, as the one nearest to it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return str(value)
