"""The table of tidemill's errors and Kafka's error codes.

Other modules get codes from here and write none as a number, except 0 for "no error". Source:
https://kafka.apache.org/protocol#protocol_error_codes.
"""

from __future__ import annotations

from typing import Any

from tidemill import errors
from tidemill.engine import errors as engine
from tidemill.kafka_codec.fields import cached
from tidemill.log import errors as log
from tidemill.metrics.errors import count_error
from tidemill.protocols.kafka import errors as kafka
from tidemill.protocols.logins import contract as logins
from tidemill.state import errors as state
from tidemill.state.security import errors as security

NONE = 0
UNKNOWN_SERVER_ERROR = -1


class InvalidRequiredAcksError(state.InvalidRequestError):
    """``acks`` is not 0, 1 or -1. Only this protocol has such a field."""


class MismatchedEndpointError(state.InvalidRequestError):
    """The client asked a broker for the endpoints of controllers (KIP-919)."""


CODES: dict[type[errors.TidemillError], int] = {
    log.OffsetOutOfRangeError: 1,
    log.CorruptBatchError: 2,
    # Not KAFKA_STORAGE_ERROR: consumers retry that one for ever without a message.
    log.CorruptLogError: 2,
    errors.UnknownTopicOrPartitionError: 3,
    # NOT_LEADER_OR_FOLLOWER: clients look for the leader again and retry.
    engine.BrokerStoppingError: 6,
    errors.RequestTimedOutError: 7,
    log.BatchTooLargeError: 10,
    state.OffsetMetadataTooLargeError: 12,
    state.CoordinatorLoadingError: 14,
    state.CoordinatorNotAvailableError: 15,
    log.InvalidTopicError: 17,
    InvalidRequiredAcksError: 21,
    state.IllegalGenerationError: 22,
    state.InconsistentGroupProtocolError: 23,
    state.InvalidGroupIdError: 24,
    state.UnknownMemberIdError: 25,
    state.InvalidSessionTimeoutError: 26,
    state.RebalanceInProgressError: 27,
    engine.TopicAuthorizationError: 29,
    engine.GroupAuthorizationError: 30,
    engine.ClusterAuthorizationError: 31,
    log.InvalidTimestampError: 32,
    security.UnsupportedMechanismError: 33,
    logins.UnknownMechanismError: 33,
    logins.LoginStateError: 34,
    kafka.UnsupportedVersionError: 35,
    state.MemberEpochsNotSupportedError: 35,
    errors.TopicExistsError: 36,
    state.InvalidPartitionsError: 37,
    state.InvalidReplicationFactorError: 38,
    state.InvalidReplicaAssignmentError: 39,
    log.InvalidConfigError: 40,
    state.InvalidRequestError: 42,
    errors.ProtocolError: 42,
    log.UnsupportedFormatError: 43,
    state.PolicyViolationError: 44,
    log.OutOfOrderSequenceError: 45,
    log.DuplicateSequenceError: 46,
    log.InvalidProducerEpochError: 47,
    log.InvalidTxnStateError: 48,
    state.InvalidProducerIdMappingError: 49,
    state.InvalidTransactionTimeoutError: 50,
    state.ConcurrentTransactionsError: 51,
    log.TransactionCoordinatorFencedError: 52,
    engine.TransactionalIdAuthorizationError: 53,
    engine.SecurityDisabledError: 54,
    engine.OperationNotAttemptedError: 55,
    log.StorageError: 56,
    kafka.LogDirNotFoundError: 57,
    logins.LoginFailedError: 58,
    log.UnknownProducerIdError: 59,
    state.NonEmptyGroupError: 68,
    state.GroupIdNotFoundError: 69,
    kafka.FetchSessionNotFoundError: 70,
    kafka.InvalidFetchSessionEpochError: 71,
    engine.FencedLeaderEpochError: 74,
    engine.UnknownLeaderEpochError: 75,
    log.UnsupportedCompressionError: 76,
    state.MemberIdRequiredError: 79,
    state.GroupMaxSizeReachedError: 81,
    state.FencedInstanceIdError: 82,
    kafka.ElectionNotNeededError: 84,
    kafka.NoReassignmentInProgressError: 85,
    state.GroupSubscribedToTopicError: 86,
    log.InvalidRecordError: 87,
    state.UnstableOffsetCommitError: 88,
    state.ProducerFencedError: 90,
    kafka.ThrottlingQuotaExceededError: 89,
    security.UnknownUserError: 91,
    security.DuplicateUserError: 92,
    security.InvalidCredentialError: 93,
    kafka.InvalidUpdateVersionError: 95,
    state.UnknownTopicIdError: 100,
    state.TransactionalIdNotFoundError: 105,
    state.FencedMemberEpochError: 110,
    state.UnreleasedInstanceIdError: 111,
    state.UnsupportedAssignorError: 112,
    state.StaleMemberEpochError: 113,
    MismatchedEndpointError: 114,
    state.TransactionAbortableError: 120,
    state.NotAcquiredError: 121,
    kafka.ShareSessionNotFoundError: 122,
    kafka.InvalidShareSessionEpochError: 123,
    state.InvalidRegularExpressionError: 128,
    kafka.ShareSessionLimitReachedError: 133,
}
"""An error type that is missing here has the code of its base class."""

_GROUP_CODES: dict[type[errors.TidemillError], int] = {
    # COORDINATOR_NOT_AVAILABLE: clients of the group APIs retry after it.
    engine.BrokerStoppingError: 15,
    log.StorageError: 15,
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
    if error is None:
        return NONE
    count_error("kafka", type(error))
    return _code_of(type(error), group)


# --- codes that older versions of an API do not know ---------------------------------------------

_PRODUCE, _INIT_PRODUCER_ID, _ADD_PARTITIONS, _ADD_OFFSETS = 0, 22, 24, 25
_END_TXN, _TXN_OFFSET_COMMIT = 26, 28
_NEVER = 1_000
_INVALID_PRODUCER_EPOCH, _INVALID_TXN_STATE = 47, 48
_COORDINATOR_NOT_AVAILABLE, _NOT_ENOUGH_REPLICAS = 15, 19

_BEFORE: dict[type[errors.TidemillError], dict[int, tuple[int, int]]] = {
    state.ProducerFencedError: {
        _PRODUCE: (_NEVER, _INVALID_PRODUCER_EPOCH),
        _INIT_PRODUCER_ID: (4, _INVALID_PRODUCER_EPOCH),
        _ADD_PARTITIONS: (2, _INVALID_PRODUCER_EPOCH),
        _ADD_OFFSETS: (2, _INVALID_PRODUCER_EPOCH),
        _END_TXN: (2, _INVALID_PRODUCER_EPOCH),
        _TXN_OFFSET_COMMIT: (_NEVER, _INVALID_PRODUCER_EPOCH),
    },
    state.TransactionAbortableError: {
        _PRODUCE: (11, _INVALID_TXN_STATE),
        _INIT_PRODUCER_ID: (5, _INVALID_TXN_STATE),
        _ADD_PARTITIONS: (5, _INVALID_TXN_STATE),
        _ADD_OFFSETS: (4, _INVALID_TXN_STATE),
        _END_TXN: (4, _INVALID_TXN_STATE),
        _TXN_OFFSET_COMMIT: (4, _INVALID_TXN_STATE),
    },
    # Producers retry these errors, but do not expect the coordinator's own codes from Produce and
    # TxnOffsetCommit.
    state.ConcurrentTransactionsError: {
        _PRODUCE: (12, _NOT_ENOUGH_REPLICAS),
        _TXN_OFFSET_COMMIT: (5, _COORDINATOR_NOT_AVAILABLE),
    },
    state.CoordinatorLoadingError: {
        _PRODUCE: (_NEVER, _NOT_ENOUGH_REPLICAS),
        _TXN_OFFSET_COMMIT: (2, _COORDINATOR_NOT_AVAILABLE),
    },
    state.CoordinatorNotAvailableError: {_PRODUCE: (_NEVER, _NOT_ENOUGH_REPLICAS)},
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
            count_error("kafka", kind)
            return before
    return error_code(error, group=api_key != _PRODUCE)


_MOST_CHARACTERS = 4_000
"""The most characters of an error's text. UTF-8 has up to four bytes for each of them."""


def error_message(error: BaseException | None) -> str | None:
    """Return the text for an ``error_message`` field: the error and its hint. None for None.

    An error can quote names that a client made up. The text is cut, because a string of the
    protocol has at most 32,767 bytes.
    """
    if error is None:
        return None
    if not isinstance(error, errors.TidemillError):
        return "The broker failed to handle this request; see its log."
    text = str(error)
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]} … {text[-half:]}"
    return f"{text.rstrip('.')}. {error.hint}" if error.hint else text


def error_fields(error: BaseException | None, *, group: bool = False) -> dict[str, Any]:
    """Return the fields of a response that ``error_code`` and ``error_message`` give."""
    return {"error_code": error_code(error, group=group), "error_message": error_message(error)}
