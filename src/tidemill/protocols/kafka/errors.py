"""Errors that only the Kafka protocol has."""

from __future__ import annotations

from tidemill.errors import ProtocolError, TidemillError


class UnsupportedVersionError(TidemillError):
    """The request uses an API, a version or a feature that is not supported."""


class LoginExpiredError(ProtocolError):
    """The login of the connection has expired, and the client did not renew it (KIP-368)."""


class ThrottlingQuotaExceededError(TidemillError):
    """The client creates and deletes partitions faster than its quota allows (KIP-599)."""


class ElectionNotNeededError(TidemillError):
    """The partition has its leader already: there is one broker."""


class LogDirNotFoundError(TidemillError):
    """The broker does not have this log folder."""


class NoReassignmentInProgressError(TidemillError):
    """No partition is being reassigned: there is one broker."""


class InvalidUpdateVersionError(TidemillError):
    """A feature can't have the level that the client asks for (KIP-584)."""


class FetchSessionNotFoundError(TidemillError):
    """The incremental fetch session is unknown: the client starts a full one."""


class InvalidFetchSessionEpochError(TidemillError):
    """The epoch of an incremental fetch session is not the expected one."""


class ShareSessionNotFoundError(TidemillError):
    """The share session is unknown: the client starts another."""


class InvalidShareSessionEpochError(TidemillError):
    """The epoch of a share session is not the expected one."""


class ShareSessionLimitReachedError(TidemillError):
    """There are too many share sessions. The client tries again later."""
