"""Errors of users, rules and quotas."""

from __future__ import annotations

from tidemill.errors import TidemillError


class UnknownUserError(TidemillError):
    """The user does not exist, or has no keys for the mechanism."""


class DuplicateUserError(TidemillError):
    """A request changes the keys of a user for the same mechanism twice."""


class InvalidCredentialError(TidemillError):
    """The name is empty, or the number of iterations is out of bounds."""


class UnsupportedMechanismError(TidemillError):
    """The SASL mechanism is unknown."""

    default_hint = "Use SCRAM-SHA-256 or SCRAM-SHA-512."
