"""Errors of reading a binary log. This module must not know a connection."""

from __future__ import annotations

from tidemill.connect.cdc.errors import PermanentCaptureError


class BinlogError(PermanentCaptureError):
    """The binary log holds something that can't be decoded or is not supported."""
