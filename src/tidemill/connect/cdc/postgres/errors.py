"""Errors that only the PostgreSQL source raises, and the translation of psycopg's errors.

A connection string is never part of an error: it can contain a password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.connect.cdc.errors import (
    CaptureError,
    PermanentCaptureError,
    PositionLostError,
    SetupError,
    SourceUnavailableError,
)

if TYPE_CHECKING:
    import psycopg


class ProtocolError(PermanentCaptureError):
    """The server sent a message that the protocol does not allow. This is a bug on one side."""


class AlteredError(SetupError):
    """A statement does not fit the table: it is gone, or it was altered since it was described."""


_PRIVILEGE, _AUTHENTICATION, _FEATURE, _UNDEFINED, _IN_USE = "42501", "28", "0A000", "42", "55006"
_PREREQUISITE, _LIMIT, _WAL_REMOVED, _NO_DATABASE = "55000", "53400", "58P01", "3D000"


def translated(fault: psycopg.Error, doing: str) -> CaptureError:
    """Return our error for one of psycopg.

    Args:
        fault: The error of psycopg or of the server.
        doing: A part of a sentence, such as "can't create the slot tidemill_a".
    """
    state = fault.sqlstate or ""
    reason = (fault.diag.message_primary or str(fault)).strip().replace("\n", " ")
    text, hint = f"{doing}: {reason}", fault.diag.message_hint or ""
    if state == _PRIVILEGE:
        return SetupError(text, hint=hint or "Run: tidemill source check NAME.")
    if state.startswith(_AUTHENTICATION):
        return SetupError(text, hint=hint or "Check user, password and the server's pg_hba.conf.")
    if state in (_FEATURE, _PREREQUISITE, _LIMIT, _NO_DATABASE):
        return SetupError(text, hint=hint or "Run: tidemill source check NAME.")
    if state == _WAL_REMOVED:
        return PositionLostError(text, hint="Run: tidemill source restart NAME --resnapshot.")
    if state.startswith(_UNDEFINED):
        return AlteredError(text, hint=hint or "Run: tidemill source check NAME.")
    if state == _IN_USE:
        hint = hint or "Another program reads this slot. Stop it, or wait until its session ends."
    return SourceUnavailableError(text, hint=hint)


@contextmanager
def translating(doing: str) -> Iterator[None]:
    """Turn errors of psycopg inside the block into ours."""
    import psycopg

    try:
        yield
    except psycopg.Error as fault:
        raise translated(fault, doing) from None
