"""Addresses of files and folders as Spark accepts them. Must not know: Spark, Kafka clients."""

from __future__ import annotations

import re

_LOCAL = re.compile(r"^file:(?://)?(?=/[^/])")


def local_path(address: str) -> str:
    """Return a path without the prefix ``file:``, which Spark also accepts.

    Args:
        address: A path, or an address like ``file:/x`` or ``file:///x``. An address of another
            file system, like ``s3a://bucket/x``, is returned unchanged.
    """
    return _LOCAL.sub("", address, count=1)
