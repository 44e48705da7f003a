"""The one table between tidemill's errors and Kafka's error codes.

Source: https://kafka.apache.org/protocol#protocol_error_codes. Nothing else in the package writes
a code as a number but ``NONE``.
"""

from __future__ import annotations

from tidemill import errors as e
from tidemill.kafka.schema import cached

NONE = 0
UNKNOWN_SERVER_ERROR = -1


class InvalidRequiredAcksError(e.InvalidRequestError):
    """``acks`` is none of 0, 1 and -1: only this protocol can say that."""


class MismatchedEndpointError(e.InvalidRequestError):
    """A broker was asked for the controllers' endpoints (KIP-919)."""


CODES: dict[type[e.TidemillError], int] = {
    e.OffsetOutOfRangeError: 1,
    e.CorruptBatchError: 2,
    # Not KAFKA_STORAGE_ERROR: consumers retry that one for ever and say nothing.
    e.CorruptLogError: 2,
    e.UnknownTopicOrPartitionError: 3,
    # NOT_LEADER_OR_FOLLOWER: clients look for the broker again and retry.
    e.BrokerStoppingError: 6,
    e.RequestTimedOutError: 7,
    e.BatchTooLargeError: 10,
    e.OffsetMetadataTooLargeError: 12,
    e.CoordinatorLoadingError: 14,
    e.CoordinatorNotAvailableError: 15,
    e.InvalidTopicError: 17,
    InvalidRequiredAcksError: 21,
    e.IllegalGenerationError: 22,
    e.InconsistentGroupProtocolError: 23,
    e.InvalidGroupIdError: 24,
    e.UnknownMemberIdError: 25,
    e.InvalidSessionTimeoutError: 26,
    e.RebalanceInProgressError: 27,
    e.InvalidTimestampError: 32,
    e.UnsupportedVersionError: 35,
    e.TopicExistsError: 36,
    e.InvalidPartitionsError: 37,
    e.InvalidReplicationFactorError: 38,
    e.InvalidReplicaAssignmentError: 39,
    e.InvalidConfigError: 40,
    e.InvalidRequestError: 42,
    e.ProtocolError: 42,
    e.UnsupportedFormatError: 43,
    e.PolicyViolationError: 44,
    e.OutOfOrderSequenceError: 45,
    e.DuplicateSequenceError: 46,
    e.InvalidProducerEpochError: 47,
    e.InvalidTxnStateError: 48,
    e.InvalidProducerIdMappingError: 49,
    e.InvalidTransactionTimeoutError: 50,
    e.ConcurrentTransactionsError: 51,
    e.TransactionCoordinatorFencedError: 52,
    e.SecurityDisabledError: 54,
    e.OperationNotAttemptedError: 55,
    e.StorageError: 56,
    e.LogDirNotFoundError: 57,
    e.UnknownProducerIdError: 59,
    e.NonEmptyGroupError: 68,
    e.GroupIdNotFoundError: 69,
    e.FetchSessionNotFoundError: 70,
    e.InvalidFetchSessionEpochError: 71,
    e.FencedLeaderEpochError: 74,
    e.UnknownLeaderEpochError: 75,
    e.UnsupportedCompressionError: 76,
    e.MemberIdRequiredError: 79,
    e.GroupMaxSizeReachedError: 81,
    e.FencedInstanceIdError: 82,
    e.ElectionNotNeededError: 84,
    e.NoReassignmentInProgressError: 85,
    e.GroupSubscribedToTopicError: 86,
    e.InvalidRecordError: 87,
    e.UnstableOffsetCommitError: 88,
    e.ProducerFencedError: 90,
    e.ResourceNotFoundError: 91,
    e.UnknownTopicIdError: 100,
    e.TransactionalIdNotFoundError: 105,
    e.UnreleasedInstanceIdError: 111,
    MismatchedEndpointError: 114,
    e.TransactionAbortableError: 120,
    e.InvalidRegularExpressionError: 128,
}
"""A type that is missing here has its base class's code."""

_GROUP_CODES: dict[type[e.TidemillError], int] = {
    # COORDINATOR_NOT_AVAILABLE: what clients of the group APIs retry on.
    e.BrokerStoppingError: 15,
    e.StorageError: 15,
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
    """Kafka's code for an error; 0 for None, -1 for what the table does not know.

    Args:
        error: usually a ``TidemillError``.
        group: asked by an API of the group coordinator, where a broker that stops or can't write
            is "coordinator not available".
    """
    return NONE if error is None else _code_of(type(error), group)


# --- codes that older versions of an API do not know ---------------------------------------------

_PRODUCE, _INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS = 0, 22, 24, 25
_END_TXN, _TXN_OFFSET_COMMIT = 26, 28
_NEVER = 1_000
_INVALID_PRODUCER_EPOCH, _INVALID_TXN_STATE = 47, 48
_COORDINATOR_NOT_AVAILABLE, _NOT_ENOUGH_REPLICAS = 15, 19

_BEFORE: dict[type[e.TidemillError], dict[int, tuple[int, int]]] = {
    e.ProducerFencedError: {
        _PRODUCE: (_NEVER, _INVALID_PRODUCER_EPOCH),
        _INIT_PRODUCER_ID: (4, _INVALID_PRODUCER_EPOCH),
        _ADD_PARTITIONS: (2, _INVALID_PRODUCER_EPOCH),
        _ADD_OFFSETS: (2, _INVALID_PRODUCER_EPOCH),
        _END_TXN: (2, _INVALID_PRODUCER_EPOCH),
        _TXN_OFFSET_COMMIT: (_NEVER, _INVALID_PRODUCER_EPOCH),
    },
    e.TransactionAbortableError: {
        _PRODUCE: (11, _INVALID_TXN_STATE),
        _INIT_PRODUCER_ID: (5, _INVALID_TXN_STATE),
        _ADD_PARTITIONS: (5, _INVALID_TXN_STATE),
        _ADD_OFFSETS: (4, _INVALID_TXN_STATE),
        _END_TXN: (4, _INVALID_TXN_STATE),
        _TXN_OFFSET_COMMIT: (4, _INVALID_TXN_STATE),
    },
    # Producers retry these two; the coordinator's own codes they do not expect from Produce and
    # TxnOffsetCommit.
    e.ConcurrentTransactionsError: {
        _PRODUCE: (12, _NOT_ENOUGH_REPLICAS),
        _TXN_OFFSET_COMMIT: (5, _COORDINATOR_NOT_AVAILABLE),
    },
    e.CoordinatorLoadingError: {
        _PRODUCE: (_NEVER, _NOT_ENOUGH_REPLICAS),
        _TXN_OFFSET_COMMIT: (2, _COORDINATOR_NOT_AVAILABLE),
    },
    e.CoordinatorNotAvailableError: {_PRODUCE: (_NEVER, _NOT_ENOUGH_REPLICAS)},
}
"""Error -> API key -> (first version that knows its code, the code before): KIP-588, KIP-890, and
what Apache Kafka 4.3 answers."""


def transaction_code(error: BaseException | None, api_key: int, version: int) -> int:
    """Kafka's code for an error of Produce or of an API of the transaction coordinator.

    Clients that do not know a code take it for a bug and fail for good: each version is told what
    it knows.

    Args:
        error: usually a ``TidemillError``.
        api_key: of the request that is answered.
        version: likewise.
    """
    for kind in type(error).__mro__:
        since, before = _BEFORE.get(kind, {}).get(api_key, (0, 0))
        if version < since:
            return before
    return error_code(error, group=api_key != _PRODUCE)


def error_message(error: BaseException | None) -> str | None:
    """Text for an ``error_message`` field: what happened and the hint; None for None."""
    if error is None:
        return None
    if not isinstance(error, e.TidemillError):
        return "The broker failed on this request; its log says why."
    text = str(error)
    return f"{text.rstrip('.')}. {error.hint}" if error.hint else text
