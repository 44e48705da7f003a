"""Makes answers of values. Must not know: what they mean."""

from __future__ import annotations

import orjson
from starlette.responses import Response

NO_STORE = {"cache-control": "no-store"}


def json_answer(content: object, status: int = 200) -> Response:
    """Return a value as JSON that is not to be cached."""
    return Response(orjson.dumps(content), status, NO_STORE, "application/json")
