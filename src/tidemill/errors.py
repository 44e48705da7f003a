"""Every way in which tidemill refuses, as types.

An error says what happened, where, and (``hint``) what to do. Protocol layers translate these
types into their own codes with one table each; nothing here knows a protocol or its numbers.
"""

from __future__ import annotations


class TidemillError(Exception):
    """Base of all errors that tidemill raises on purpose.

    Attributes:
        hint: what the caller can do about it, or an empty string.
    """

    default_hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = self.default_hint if hint is None else hint


# --- start-up, settings, the data folder ---------------------------------------------------------


class SettingsError(TidemillError):
    """A setting is unknown, malformed or out of its range."""


class DataDirLockedError(TidemillError):
    """Another process uses this data folder."""


class FormatVersionError(TidemillError):
    """The data folder was written by a version whose format this one does not read."""


# --- storage -------------------------------------------------------------------------------------


class StorageError(TidemillError):
    """The disk refused, or what it holds can't be used."""


class DiskFullError(StorageError):
    """No space is left: the write was refused and nothing of it is readable."""

    default_hint = "Free disk space, lower retention, or delete topics."


class SyncFailedError(StorageError):
    """fsync failed. Nothing that is known about the disk holds any longer: the broker must stop."""

    default_hint = "Check the disk, then start the broker again; it recovers what is really there."


class CorruptLogError(StorageError):
    """Stored bytes that should be whole are not. Never repaired in silence.

    Attributes:
        path: the damaged file.
        position: byte position in the file.
        offset: first log offset that can't be read, where it is known.
    """

    default_hint = (
        "Stop the broker and restore the file from a backup; or give the damaged records up: read "
        "what is before them, then DeleteRecords beyond them."
    )

    def __init__(
        self,
        message: str,
        *,
        path: str,
        position: int,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.position = position
        self.offset = offset


# --- records and appends -------------------------------------------------------------------------


class CorruptBatchError(TidemillError):
    """A record batch from a client is torn, has a wrong CRC or contradicts itself."""


class InvalidRecordError(TidemillError):
    """A record may not be written here (no key in a compacted topic, a bad codec, a bad count)."""


class InvalidTimestampError(TidemillError):
    """A timestamp is too far from the broker's clock for this topic's settings."""


class UnsupportedFormatError(TidemillError):
    """Message format before v2 (magic 2)."""

    default_hint = "Use a client of 2017 or newer (record batches, magic 2)."


class UnsupportedCompressionError(TidemillError):
    """The codec is unknown, or not allowed in this request version."""


class BatchTooLargeError(TidemillError):
    """A batch is larger than ``max.message.bytes`` of its topic."""

    default_hint = "Raise max.message.bytes on the topic, or lower batch.size at the producer."


class OffsetOutOfRangeError(TidemillError):
    """The offset is below the log's start or above its end."""


class OutOfOrderSequenceError(TidemillError):
    """An idempotent producer's sequence number leaves a gap."""


class DuplicateSequenceError(TidemillError):
    """The batch was appended before, but so long ago that its offset is no longer known."""


class UnknownProducerIdError(TidemillError):
    """Nothing is known of this producer id on the partition."""


class InvalidProducerEpochError(TidemillError):
    """A newer instance of this producer has fenced this one."""


# --- topics --------------------------------------------------------------------------------------


class UnknownTopicOrPartitionError(TidemillError):
    """There is no such topic, or no such partition in it."""


class UnknownTopicIdError(TidemillError):
    """No topic has this id."""


class InvalidTopicError(TidemillError):
    """The topic's name is not legal, or it is internal and may not be changed by clients."""


class TopicExistsError(TidemillError):
    """A topic of this name exists."""


class InvalidPartitionsError(TidemillError):
    """The number of partitions is not possible."""


class InvalidReplicationFactorError(TidemillError):
    """More replicas are asked for than there are brokers (one)."""

    default_hint = "Use replication factor 1 (or -1): tidemill is one broker."


class InvalidReplicaAssignmentError(TidemillError):
    """A replica assignment names brokers that do not exist, or is not well-formed."""


class InvalidConfigError(TidemillError):
    """A topic or broker config is unknown, malformed, out of range or read-only."""


class InvalidRequestError(TidemillError):
    """The request contradicts itself or the protocol."""


class UnsupportedVersionError(TidemillError):
    """The request uses an API, a version or a feature that is not offered."""


class PolicyViolationError(TidemillError):
    """The request is well-formed, but a limit of this broker forbids it."""


class ElectionNotNeededError(TidemillError):
    """The partition has its leader: there is one broker."""


class ResourceNotFoundError(TidemillError):
    """A named resource (a user, a client-metrics subscription) does not exist."""


class LogDirNotFoundError(TidemillError):
    """The broker has no such log folder; it has one."""


class SecurityDisabledError(TidemillError):
    """Access control lists are asked for, and no authorizer is configured."""


class FencedLeaderEpochError(TidemillError):
    """The client's leader epoch is older than the partition's."""


class UnknownLeaderEpochError(TidemillError):
    """The client's leader epoch is newer than the partition's."""


class BrokerStoppingError(TidemillError):
    """The broker is shutting down (or has not finished starting)."""


class RequestTimedOutError(TidemillError):
    """The work was not done within the time that the request allowed."""


# --- groups --------------------------------------------------------------------------------------


class CoordinatorNotAvailableError(TidemillError):
    """The group's state could not be written; ask again."""


class CoordinatorLoadingError(TidemillError):
    """The groups are still being read from disk; ask again."""


class InvalidGroupIdError(TidemillError):
    """The group id is empty or not usable with this request."""


class GroupIdNotFoundError(TidemillError):
    """There is no such group."""


class NonEmptyGroupError(TidemillError):
    """The group still has members."""


class GroupSubscribedToTopicError(TidemillError):
    """Members of the group are subscribed to the topic."""


class UnknownMemberIdError(TidemillError):
    """The group does not know this member: it must join again."""


class MemberIdRequiredError(TidemillError):
    """The member must join again with the member id it was given.

    Attributes:
        member_id: the id to join with.
    """

    def __init__(self, message: str, *, member_id: str) -> None:
        super().__init__(message)
        self.member_id = member_id


class IllegalGenerationError(TidemillError):
    """The generation is not the group's current one."""


class RebalanceInProgressError(TidemillError):
    """The group is rebalancing: the member must join again."""


class InconsistentGroupProtocolError(TidemillError):
    """The member shares no protocol with the others, or its protocol type differs."""


class InvalidSessionTimeoutError(TidemillError):
    """The session timeout is outside the broker's bounds."""


class FencedInstanceIdError(TidemillError):
    """A newer member uses this static ``group.instance.id``."""


class UnreleasedInstanceIdError(TidemillError):
    """The static ``group.instance.id`` is still used by a member that has not left."""


class GroupMaxSizeReachedError(TidemillError):
    """The group has as many members as it may."""


class OffsetMetadataTooLargeError(TidemillError):
    """The metadata string of a committed offset is too long."""


class UnstableOffsetCommitError(TidemillError):
    """An open transaction holds offsets of this group (``require_stable``)."""


class NoReassignmentInProgressError(TidemillError):
    """No partition reassignment is running; there is one broker."""


# --- transactions --------------------------------------------------------------------------------


class ProducerFencedError(TidemillError):
    """A newer producer with the same transactional id has taken over (KIP-98)."""

    default_hint = "Close this producer: another instance uses its transactional id."


class InvalidTxnStateError(TidemillError):
    """The transaction's state does not allow this: nothing is open, or it is ending already."""


class InvalidProducerIdMappingError(TidemillError):
    """The coordinator knows another producer id for the transactional id, or none."""


class InvalidTransactionTimeoutError(TidemillError):
    """The transaction timeout is not above zero, or above ``transaction.max.timeout.ms``."""

    default_hint = "Lower transaction.timeout.ms, or raise the broker's limit."


class ConcurrentTransactionsError(TidemillError):
    """The producer's previous transaction is still being ended; ask again."""


class TransactionCoordinatorFencedError(TidemillError):
    """A transaction marker carries an older coordinator epoch than the partition knows."""


class TransactionalIdNotFoundError(TidemillError):
    """No producer with this transactional id is known."""


class TransactionAbortableError(TidemillError):
    """The transaction can't go on and must be aborted; the producer may then go on (KIP-890)."""


class OperationNotAttemptedError(TidemillError):
    """Nothing is wrong with this part of the request; another part's error stopped all of it."""


class InvalidRegularExpressionError(InvalidRequestError):
    """A pattern is not a regular expression."""


# --- connections ---------------------------------------------------------------------------------


class ProtocolError(TidemillError):
    """Bytes on a connection that are not the protocol: the connection is closed."""


class RequestTooLargeError(ProtocolError):
    """A frame is longer than ``socket.request.max.bytes``."""


class UnreachableError(TidemillError):
    """No broker answers at the address."""


class FetchSessionNotFoundError(TidemillError):
    """The incremental fetch session is unknown: the client starts a full one."""


class InvalidFetchSessionEpochError(TidemillError):
    """The epoch of an incremental fetch session is not the expected one."""


# --- pipelines -----------------------------------------------------------------------------------


class JavaNotFoundError(TidemillError):
    """There is no Java that Spark can run on."""

    default_hint = 'Install Java 17 or newer, or: pip install "tidemill[jre]".'


class JvmStartError(TidemillError):
    """Java was found, but the JVM of Spark did not come up."""


class OptionError(SettingsError):
    """An option of the Spark source or sink is unknown, malformed or contradicts another."""


class DataLossError(TidemillError):
    """Records that a query has yet to read are gone from the log, or the topic itself is."""

    default_hint = (
        "Set failOnDataLoss to false to go on without them, or start with a new checkpoint."
    )


class DeliveryError(TidemillError):
    """Records were not accepted by the broker: the batch is not complete in the topic."""


class WindowError(TidemillError):
    """A window is malformed, or used where it can't be."""


class OutputModeError(TidemillError):
    """A streaming query can't be run in its output mode, with its windows and watermarks."""


class SchemaError(TidemillError):
    """A schema of columns and types is malformed."""


class JoinError(TidemillError):
    """A join is malformed, its inputs can't be joined, or a table is not what it should be."""


class PipelineError(TidemillError):
    """A pipeline can't be loaded, found or run."""


class MissingPackageError(PipelineError):
    """A pipeline needs a Python package that is not installed."""


class SinkError(TidemillError):
    """A database can't take a batch of rows: it refused, or the rows are not fit for it."""


class CheckpointRestoredError(TidemillError):
    """A checkpoint was put back from a backup, or copied: its sink holds a batch that it plans
    anew, with other records."""


class RowError(SinkError):
    """Rows of a batch that no table can take: one has no key, or two have the same."""


class PipelineRunningError(PipelineError):
    """Another process runs the pipeline."""

    default_hint = "Stop it first."
