"""Errors of bridges.

A keeper starts a bridge again after a ``BridgeError``. After a ``PermanentBridgeError`` it waits
for the user.
"""

from __future__ import annotations

import errno

from tidemill.errors import TidemillError


class BridgeError(TidemillError):
    """A bridge has failed. It starts again after a pause."""


class TopicGoneError(BridgeError):
    """The topic of a bridge was deleted, or created again: what a session had has ended."""


class PermanentBridgeError(BridgeError):
    """A bridge has failed, and would fail in the same way without a change by the user."""


class DefinitionError(PermanentBridgeError):
    """The definition of a bridge is invalid. The user corrects it."""


def opening_failed(error: TidemillError) -> BridgeError:
    """Return the error of a bridge whose addresses can't be opened.

    One that is in use can be free soon, when another worker of the bridge has ended.
    """
    is_in_use = getattr(error.__cause__, "errno", None) == errno.EADDRINUSE
    kind = BridgeError if is_in_use else PermanentBridgeError
    return kind(str(error), hint=error.hint)
