"""Errors that the engine raises.

The log and the state machines have errors of their own, which pass through the engine unchanged.
"""

from __future__ import annotations

from tidemill.errors import RequestTimedOutError, TidemillError
from tidemill.log.errors import StorageError


class BrokerStoppingError(TidemillError):
    """The broker is shutting down."""


class BrokerBusyError(RequestTimedOutError):
    """The broker has more to do than it can keep in memory. The client sends the batch again."""

    retriable = True


class FencedLeaderEpochError(TidemillError):
    """The client's leader epoch is older than the partition's."""


class UnknownLeaderEpochError(TidemillError):
    """The client's leader epoch is newer than the partition's."""


class OperationNotAttemptedError(TidemillError):
    """This part of the request is valid, but another part failed and so nothing was done."""


class AuthorizationError(TidemillError):
    """The principal is not allowed to do this."""


class TopicAuthorizationError(AuthorizationError):
    """The principal is not allowed to do this with the topic."""


class GroupAuthorizationError(AuthorizationError):
    """The principal is not allowed to do this with the consumer group."""


class TransactionalIdAuthorizationError(AuthorizationError):
    """The principal is not allowed to use the transactional id."""


class ExchangeAuthorizationError(AuthorizationError):
    """The principal is not allowed to do this with the exchange of queues."""


class ClusterAuthorizationError(AuthorizationError):
    """The principal is not allowed to do this with the cluster."""


class SecurityDisabledError(TidemillError):
    """The request is about rules of access, and no authorizer is configured."""


class CatalogLostError(StorageError):
    """The catalog is missing, damaged, or lost records. The broker does not start without it.

    An operator restores the folder from a backup, or has the catalog rebuilt from the folders of
    the partitions.
    """

    retriable = False
    default_hint = (
        "Nothing was changed. Copy the data folder to a safe place. Then restore the catalog's "
        "folder from a backup, or rebuild it with: tidemill doctor --repair catalog"
    )
