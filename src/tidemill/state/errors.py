"""The errors of the state machines. Each docstring says what the caller does about it."""

from __future__ import annotations

from tidemill.errors import TidemillError

# --- topics and configs --------------------------------------------------------------------------


class UnknownTopicIdError(TidemillError):
    """No topic has this id. The client refreshes its metadata."""


class InvalidPartitionsError(TidemillError):
    """The number of partitions is zero, negative, or not larger than the present one."""


class InvalidReplicationFactorError(TidemillError):
    """The replication factor is larger than the number of brokers, which is one."""

    default_hint = "Use replication factor 1 (or -1): tidemill is one broker."


class InvalidReplicaAssignmentError(TidemillError):
    """A replica assignment names a broker that does not exist, or is malformed."""


class InvalidRequestError(TidemillError):
    """The request contradicts itself or the protocol. Sending it again does not help."""


class PolicyViolationError(TidemillError):
    """The request is well-formed, but a limit of this broker does not allow it."""


# --- coordinators --------------------------------------------------------------------------------


class CoordinatorNotAvailableError(TidemillError):
    """The coordinator's state could not be written. The client can retry."""

    retriable = True


class CoordinatorLoadingError(TidemillError):
    """The coordinator is still reading its state from disk. The client can retry."""

    retriable = True


# --- groups and committed offsets ----------------------------------------------------------------


class InvalidGroupIdError(TidemillError):
    """The group id is empty or too long."""


class GroupIdNotFoundError(TidemillError):
    """The group does not exist."""


class NonEmptyGroupError(TidemillError):
    """The group has members. Stop its consumers first."""


class GroupSubscribedToTopicError(TidemillError):
    """Members of the group are subscribed to the topic. Stop its consumers first."""


class UnknownMemberIdError(TidemillError):
    """The member id is not in the group. The member joins again, without an id."""


class MemberIdRequiredError(TidemillError):
    """The new member must join again with the member id in this error (KIP-394).

    Attributes:
        member_id: the id to join with.
    """

    def __init__(self, message: str, *, member_id: str) -> None:
        super().__init__(message)
        self.member_id = member_id


class IllegalGenerationError(TidemillError):
    """The generation is not the group's current one. The member joins again."""


class RebalanceInProgressError(TidemillError):
    """The group is rebalancing. The member joins again, with its id."""


class InconsistentGroupProtocolError(TidemillError):
    """The member shares no assignor with the other members, or has another protocol type."""


class InvalidSessionTimeoutError(TidemillError):
    """The session timeout is outside the limits of the broker."""


class FencedInstanceIdError(TidemillError):
    """A newer member uses this ``group.instance.id``. The older one stops (KIP-345)."""


class FencedMemberEpochError(TidemillError):
    """The member's epoch is not the one that the group has. It gives up all its partitions and
    joins again (KIP-848)."""


class StaleMemberEpochError(TidemillError):
    """The member's epoch is not its current one. It asks again with the epoch of its next
    heartbeat (KIP-848)."""


class UnreleasedInstanceIdError(TidemillError):
    """The static ``group.instance.id`` is still used by a member that has not left."""


class UnsupportedAssignorError(TidemillError):
    """The broker has no assignor of this name."""


class MemberEpochsNotSupportedError(InvalidRequestError):
    """A member of a consumer group uses a version of a request without member epochs."""

    default_hint = "Use OffsetCommit version 9 or newer."


class GroupMaxSizeReachedError(TidemillError):
    """The group already has the largest number of members that the broker allows."""


class OffsetMetadataTooLargeError(TidemillError):
    """The metadata string of a committed offset is longer than the broker allows."""


class UnstableOffsetCommitError(TidemillError):
    """An open transaction holds offsets of this group. The client asks again (KIP-447)."""


# --- transactions --------------------------------------------------------------------------------


class ConcurrentTransactionsError(TidemillError):
    """The producer's previous transaction is still being ended. The client can retry."""

    retriable = True


class ProducerFencedError(TidemillError):
    """A newer producer uses the same transactional id (KIP-98). The older one stops."""

    default_hint = "Close this producer: another instance uses its transactional id."


class InvalidProducerIdMappingError(TidemillError):
    """The transactional id is unknown, or has another producer id. The producer starts again."""


class InvalidTransactionTimeoutError(TidemillError):
    """The transaction timeout is not above zero, or above ``transaction.max.timeout.ms``."""

    default_hint = "Lower transaction.timeout.ms, or raise the broker's limit."


class TransactionalIdNotFoundError(TidemillError):
    """The transactional id does not exist."""


class TransactionAbortableError(TidemillError):
    """The transaction can't continue. The producer aborts it and may start another (KIP-890)."""


class InvalidRegularExpressionError(InvalidRequestError):
    """A pattern is not a valid regular expression."""


class NotAcquiredError(TidemillError):
    """The caller settles a record that it does not hold.

    Attributes:
        offset: the first such record.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(f"offset {offset} is not acquired by this consumer")
        self.offset = offset
