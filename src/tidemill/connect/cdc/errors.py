"""Errors of change data capture.

The worker restarts after a ``CaptureError`` with a growing pause. After a ``PermanentCaptureError``
it stops until the user asks for a restart, because the same error would occur again.
"""

from __future__ import annotations

from tidemill.errors import TidemillError


class CaptureError(TidemillError):
    """Capture failed. The worker starts again from the stored position after a pause."""


class SourceUnavailableError(CaptureError):
    """The database does not answer, is locked or refuses the connection for now."""


class PermanentCaptureError(CaptureError):
    """Capture failed, and a restart without a change by the user would fail in the same way."""


class DefinitionError(PermanentCaptureError):
    """The definition of a source is invalid. The user corrects its file."""


class SetupError(PermanentCaptureError):
    """The database lacks a setting, a privilege or an object. The hint has the statement."""


class PositionLostError(PermanentCaptureError):
    """The database does not have the changes after the stored position any more.

    A new snapshot is needed: ``tidemill source restart NAME --resnapshot``.
    """


class FencedError(PermanentCaptureError):
    """Another worker of the same source has started, so this one must stop."""


class SourceExistsError(TidemillError):
    """A source with this name already exists. The user takes another name, or replaces it."""
