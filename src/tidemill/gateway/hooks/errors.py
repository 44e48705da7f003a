"""Errors of storing what a hook has received. The sender can try again after each of them."""

from __future__ import annotations

from tidemill.errors import TidemillError


class HookUnavailableError(TidemillError):
    """The records of a hook can't be stored for now: no broker answers, or not in time."""


class HookOverloadedError(HookUnavailableError):
    """More records wait to be stored than a hook may hold in memory."""


class HookFencedError(HookUnavailableError):
    """Another gateway has taken over the hook. Requests must go there."""
