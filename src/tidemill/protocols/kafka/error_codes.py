"""The table of tidemill's errors and Kafka's error codes.

Other modules get codes from here and write none as a number, except 0 for "no error". Source:
https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

from tidemill.engine.errors import (
    BrokerStoppingError,
    ClusterAuthorizationError,
    FencedLeaderEpochError,
    GroupAuthorizationError,
    OperationNotAttemptedError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
    UnknownLeaderEpochError,
)
from tidemill.errors import (
    ProtocolError,
    RequestTimedOutError,
    TidemillError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from tidemill.kafka_codec.fields import cached
from tidemill.log.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    CorruptLogError,
    DuplicateSequenceError,
    InvalidConfigError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTxnStateError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StorageError,
    TransactionCoordinatorFencedError,
    UnknownProducerIdError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
)
from tidemill.protocols.kafka.errors import (
    ElectionNotNeededError,
    FetchSessionNotFoundError,
    InvalidFetchSessionEpochError,
    InvalidShareSessionEpochError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
    ResourceNotFoundError,
    SecurityDisabledError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
    UnsupportedVersionError,
)
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidPartitionsError,
    InvalidProducerIdMappingError,
    InvalidRegularExpressionError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    InvalidTransactionTimeoutError,
    MemberEpochsNotSupportedError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    NotAcquiredError,
    OffsetMetadataTooLargeError,
    PolicyViolationError,
    ProducerFencedError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnreleasedInstanceIdError,
    UnstableOffsetCommitError,
    UnsupportedAssignorError,
)

NONE = 0
UNKNOWN_SERVER_ERROR = -1


class InvalidRequiredAcksError(InvalidRequestError):
    """``acks`` is not 0, 1 or -1. Only this protocol has such a field."""


class MismatchedEndpointError(InvalidRequestError):
    """The client asked a broker for the endpoints of controllers (KIP-919)."""


CODES: dict[type[TidemillError], int] = {
    OffsetOutOfRangeError: 1,
    CorruptBatchError: 2,
    # Not KAFKA_STORAGE_ERROR: consumers retry that one for ever without a message.
    CorruptLogError: 2,
    UnknownTopicOrPartitionError: 3,
    # NOT_LEADER_OR_FOLLOWER: clients look for the leader again and retry.
    BrokerStoppingError: 6,
    RequestTimedOutError: 7,
    BatchTooLargeError: 10,
    OffsetMetadataTooLargeError: 12,
    CoordinatorLoadingError: 14,
    CoordinatorNotAvailableError: 15,
    InvalidTopicError: 17,
    InvalidRequiredAcksError: 21,
    IllegalGenerationError: 22,
    InconsistentGroupProtocolError: 23,
    InvalidGroupIdError: 24,
    UnknownMemberIdError: 25,
    InvalidSessionTimeoutError: 26,
    RebalanceInProgressError: 27,
    TopicAuthorizationError: 29,
    GroupAuthorizationError: 30,
    ClusterAuthorizationError: 31,
    InvalidTimestampError: 32,
    UnsupportedVersionError: 35,
    MemberEpochsNotSupportedError: 35,
    TopicExistsError: 36,
    InvalidPartitionsError: 37,
    InvalidReplicationFactorError: 38,
    InvalidReplicaAssignmentError: 39,
    InvalidConfigError: 40,
    InvalidRequestError: 42,
    ProtocolError: 42,
    UnsupportedFormatError: 43,
    PolicyViolationError: 44,
    OutOfOrderSequenceError: 45,
    DuplicateSequenceError: 46,
    InvalidProducerEpochError: 47,
    InvalidTxnStateError: 48,
    InvalidProducerIdMappingError: 49,
    InvalidTransactionTimeoutError: 50,
    ConcurrentTransactionsError: 51,
    TransactionCoordinatorFencedError: 52,
    TransactionalIdAuthorizationError: 53,
    SecurityDisabledError: 54,
    OperationNotAttemptedError: 55,
    StorageError: 56,
    LogDirNotFoundError: 57,
    UnknownProducerIdError: 59,
    NonEmptyGroupError: 68,
    GroupIdNotFoundError: 69,
    FetchSessionNotFoundError: 70,
    InvalidFetchSessionEpochError: 71,
    FencedLeaderEpochError: 74,
    UnknownLeaderEpochError: 75,
    UnsupportedCompressionError: 76,
    MemberIdRequiredError: 79,
    GroupMaxSizeReachedError: 81,
    FencedInstanceIdError: 82,
    ElectionNotNeededError: 84,
    NoReassignmentInProgressError: 85,
    GroupSubscribedToTopicError: 86,
    InvalidRecordError: 87,
    UnstableOffsetCommitError: 88,
    ProducerFencedError: 90,
    ResourceNotFoundError: 91,
    UnknownTopicIdError: 100,
    TransactionalIdNotFoundError: 105,
    FencedMemberEpochError: 110,
    UnreleasedInstanceIdError: 111,
    UnsupportedAssignorError: 112,
    StaleMemberEpochError: 113,
    MismatchedEndpointError: 114,
    TransactionAbortableError: 120,
    NotAcquiredError: 121,
    ShareSessionNotFoundError: 122,
    InvalidShareSessionEpochError: 123,
    InvalidRegularExpressionError: 128,
    ShareSessionLimitReachedError: 133,
}
"""An error type that is missing here has the code of its base class."""

_GROUP_CODES: dict[type[TidemillError], int] = {
    # COORDINATOR_NOT_AVAILABLE: clients of the group APIs retry after it.
    BrokerStoppingError: 15,
    StorageError: 15,
}


@cached
def _code_of(kind: type[BaseException], group: bool) -> int:
    for base in kind.__mro__:
        if group and base in _GROUP_CODES:
            return _GROUP_CODES[base]
        if base in CODES:
            return CODES[base]
    return UNKNOWN_SERVER_ERROR


def error_code(error: BaseException | None, *, group: bool = False) -> int:
    """Return Kafka's code for an error: 0 for None, -1 for a type that is not in the table.

    Args:
        group: whether an API of the group coordinator responds. There, a broker that stops or
            can't write is "coordinator not available".
    """
    return NONE if error is None else _code_of(type(error), group)


# --- codes that older versions of an API do not know ---------------------------------------------

_PRODUCE, _INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS = 0, 22, 24, 25
_END_TXN, _TXN_OFFSET_COMMIT = 26, 28
_NEVER = 1_000
_INVALID_PRODUCER_EPOCH, _INVALID_TXN_STATE = 47, 48
_COORDINATOR_NOT_AVAILABLE, _NOT_ENOUGH_REPLICAS = 15, 19

_BEFORE: dict[type[TidemillError], dict[int, tuple[int, int]]] = {
    ProducerFencedError: {
        _PRODUCE: (_NEVER, _INVALID_PRODUCER_EPOCH),
        _INIT_PRODUCER_ID: (4, _INVALID_PRODUCER_EPOCH),
        _ADD_PARTITIONS: (2, _INVALID_PRODUCER_EPOCH),
        _ADD_OFFSETS: (2, _INVALID_PRODUCER_EPOCH),
        _END_TXN: (2, _INVALID_PRODUCER_EPOCH),
        _TXN_OFFSET_COMMIT: (_NEVER, _INVALID_PRODUCER_EPOCH),
    },
    TransactionAbortableError: {
        _PRODUCE: (11, _INVALID_TXN_STATE),
        _INIT_PRODUCER_ID: (5, _INVALID_TXN_STATE),
        _ADD_PARTITIONS: (5, _INVALID_TXN_STATE),
        _ADD_OFFSETS: (4, _INVALID_TXN_STATE),
        _END_TXN: (4, _INVALID_TXN_STATE),
        _TXN_OFFSET_COMMIT: (4, _INVALID_TXN_STATE),
    },
    # Producers retry these errors, but do not expect the coordinator's own codes from Produce and
    # TxnOffsetCommit.
    ConcurrentTransactionsError: {
        _PRODUCE: (12, _NOT_ENOUGH_REPLICAS),
        _TXN_OFFSET_COMMIT: (5, _COORDINATOR_NOT_AVAILABLE),
    },
    CoordinatorLoadingError: {
        _PRODUCE: (_NEVER, _NOT_ENOUGH_REPLICAS),
        _TXN_OFFSET_COMMIT: (2, _COORDINATOR_NOT_AVAILABLE),
    },
    CoordinatorNotAvailableError: {_PRODUCE: (_NEVER, _NOT_ENOUGH_REPLICAS)},
}
"""Error -> API key -> (first version with the error's own code, the code of older versions).

Sources: KIP-588, KIP-890, and the responses of Apache Kafka 4.3."""


def transaction_code(error: BaseException | None, api_key: int, version: int) -> int:
    """Return Kafka's code for an error of Produce or of an API of the transaction coordinator.

    A client fails permanently on a code that it does not know, so each version gets one that it
    knows.
    """
    for kind in type(error).__mro__:
        since, before = _BEFORE.get(kind, {}).get(api_key, (0, 0))
        if version < since:
            return before
    return error_code(error, group=api_key != _PRODUCE)


def error_message(error: BaseException | None) -> str | None:
    """Return the text for an ``error_message`` field: the error and its hint. None for None."""
    if error is None:
        return None
    if not isinstance(error, TidemillError):
        return "The broker failed to handle this request; see its log."
    text = str(error)
    return f"{text.rstrip('.')}. {error.hint}" if error.hint else text
