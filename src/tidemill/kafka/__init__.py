"""The Kafka protocol: bytes <-> calls of the broker, nothing else."""

from __future__ import annotations

import sys
from typing import Any, cast

# kio registers itself with hypothesis wherever that is installed, which costs the broker 0.2 s at
# start and 15 MB for good. Nothing here needs it; where a test has loaded it, it stays.
_HYPOTHESIS = sys.modules.get("hypothesis")
if _HYPOTHESIS is None:
    sys.modules["hypothesis"] = cast(Any, None)
try:
    import kio.serial  # noqa: F401
finally:
    if _HYPOTHESIS is None:
        del sys.modules["hypothesis"]
