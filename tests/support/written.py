"""Results of writes."""

from __future__ import annotations

from tidemill.engine.api import WriteResult
from tidemill.errors import TidemillError


def offset_of(result: WriteResult) -> int:
    """Return the base offset of appended batches; raise the error of others."""
    if isinstance(result, TidemillError):
        raise result
    return result[0]
