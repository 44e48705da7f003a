"""Errors of the gateway, and the only table of statuses.

An answer has the body of RFC 9457 (``application/problem+json``) with two more fields: ``error`` is
a code for programs, and ``hint`` says what to do. Must not know: routes, records.
"""

from __future__ import annotations

import http
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import orjson
from confluent_kafka import KafkaError
from starlette.responses import Response

from tidemill.amqp_client.errors import AmqpConflictError, AmqpNotFoundError, QueueRefusedError
from tidemill.confluent.errors import RETRIABLE
from tidemill.confluent.reading import OutOfRangeError
from tidemill.connect.base.errors import RecordRefusedError, RecordTooLargeError
from tidemill.connect.webhooks.signatures import SignatureError
from tidemill.errors import (
    NotAllowedError,
    RequestTimedOutError,
    StateConflictError,
    TidemillError,
    UnknownTopicOrPartitionError,
    UnreachableError,
    lower_first,
)
from tidemill.kafka_client.errors import RefusedError, UnsupportedSettingError
from tidemill.sql.errors import (
    QueryEndedError,
    SqlError,
    StatementRefusedError,
    TooMuchToReadError,
    UnknownTableError,
)

K = TypeVar("K")
RETRY_AFTER_S = 1.0


class HttpError(TidemillError):
    """A request is refused, or can't be answered.

    Args:
        status: The HTTP status.
        code: The code for programs, like ``unknown_topic``.
        retry_after_s: When to try again, in seconds; None if that is of no use.
        more: More fields of the body.
        headers: More headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        retry_after_s: float | None = None,
        more: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s
        self.more = dict(more or {})
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """Return the fields of the answer."""
        return {
            "type": "about:blank",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "error": self.code,
            "detail": str(self),
            **({"hint": self.hint} if self.hint else {}),
            **self.more,
        }

    def response(self) -> Response:
        """Return the answer."""
        headers = dict(self.headers)
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return Response(orjson.dumps(self.body()), self.status, headers, "application/problem+json")


# --- of hooks, whose pure parts know no status ----------------------------------------------------


class EventError(TidemillError):
    """A request does not contain a valid CloudEvent. The sender corrects it; a retry is in vain."""


class DeliveryIdError(TidemillError):
    """The id of a delivery is too long to be remembered. The sender corrects it."""


class HookUnavailableError(TidemillError):
    """The records of a hook can't be stored for now: no broker answers, or not in time."""


class HookOverloadedError(HookUnavailableError):
    """More records wait to be stored than a hook may hold in memory."""


class HookFencedError(HookUnavailableError):
    """Another gateway has taken over the hook. Requests must go there."""


# --- statuses -------------------------------------------------------------------------------------


def invalid(message: str, *, hint: str | None = None) -> HttpError:
    """Return the error for a request that is malformed."""
    return HttpError(400, "invalid_request", message, hint=hint)


def unavailable(message: str, *, hint: str | None = None) -> HttpError:
    """Return the error for a broker that does not answer."""
    return HttpError(503, "unavailable", message, hint=hint, retry_after_s=RETRY_AFTER_S)


def busy(message: str) -> HttpError:
    """Return the error for a limit of the gateway that is reached now."""
    return HttpError(503, "busy", message, retry_after_s=RETRY_AFTER_S)


_Answer = tuple[int, str, float | None]
_TYPES: Mapping[type, _Answer] = {
    UnknownTopicOrPartitionError: (404, "unknown_topic", None),
    UnreachableError: (503, "unavailable", RETRY_AFTER_S),
    NotAllowedError: (403, "forbidden", None),
    StateConflictError: (409, "conflict", None),
    UnsupportedSettingError: (501, "not_supported", None),
    RequestTimedOutError: (503, "unavailable", RETRY_AFTER_S),
    # Of hooks.
    SignatureError: (401, "invalid_signature", None),
    EventError: (400, "invalid_event", None),
    DeliveryIdError: (400, "invalid_delivery_id", None),
    RecordTooLargeError: (413, "record_too_large", None),
    RecordRefusedError: (422, "record_refused", None),
    HookFencedError: (503, "fenced", 30.0),
    HookOverloadedError: (503, "busy", RETRY_AFTER_S),
    HookUnavailableError: (503, "unavailable", RETRY_AFTER_S),
    # Of queries.
    UnknownTableError: (404, "unknown_topic", None),
    TooMuchToReadError: (413, "too_much_to_read", None),
    QueryEndedError: (504, "query_timeout", None),
    StatementRefusedError: (400, "statement_refused", None),
    SqlError: (400, "invalid_statement", None),
    # Of queues.
    AmqpNotFoundError: (404, "not_found", None),
    AmqpConflictError: (409, "conflict", None),
    QueueRefusedError: (403, "forbidden", None),
}
"""Status, code and Retry-After by class; of several that fit, the most special one counts."""
_BY_NAME: Mapping[str, _Answer] = {kind.__name__: found for kind, found in _TYPES.items()}
_OUT_OF_RANGE = (416, "offset_out_of_range")
_CODES: Mapping[int, tuple[int, str]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: (404, "unknown_topic"),
    KafkaError._UNKNOWN_TOPIC: (404, "unknown_topic"),
    # The number was compared with those of the topic, which was deleted since.
    KafkaError._UNKNOWN_PARTITION: (404, "unknown_topic"),
    KafkaError.TOPIC_EXCEPTION: (400, "invalid_topic"),
    KafkaError.INVALID_CONFIG: (400, "invalid_request"),
    KafkaError.INVALID_PARTITIONS: (400, "invalid_request"),
    KafkaError.INVALID_REPLICATION_FACTOR: (400, "invalid_request"),
    KafkaError.INVALID_REQUEST: (400, "invalid_request"),
    KafkaError.TOPIC_ALREADY_EXISTS: (409, "topic_exists"),
    KafkaError.MSG_SIZE_TOO_LARGE: (413, "record_too_large"),
    KafkaError.RECORD_LIST_TOO_LARGE: (413, "record_too_large"),
    KafkaError.INVALID_RECORD: (422, "record_refused"),
    KafkaError.INVALID_TIMESTAMP: (422, "record_refused"),
    KafkaError.POLICY_VIOLATION: (422, "record_refused"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (403, "forbidden"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: (403, "forbidden"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (403, "forbidden"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (403, "forbidden"),
    KafkaError.GROUP_ID_NOT_FOUND: (404, "unknown_group"),
    KafkaError.NOT_ENOUGH_REPLICAS: (503, "unavailable"),
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: (503, "unavailable"),
    KafkaError.THROTTLING_QUOTA_EXCEEDED: (429, "throttled"),
    KafkaError._MSG_TIMED_OUT: (503, "unavailable"),
    KafkaError._QUEUE_FULL: (503, "busy"),
    KafkaError._FATAL: (503, "unavailable"),
    KafkaError._PURGE_QUEUE: (503, "unavailable"),
    KafkaError._PURGE_INFLIGHT: (503, "unavailable"),
}


def from_kafka(error: KafkaError, what: str) -> HttpError:
    """Return the answer for an error of librdkafka's.

    Args:
        what: What it is about, like ``topic orders``.
    """
    if _of_code(error.code())[1] == "unknown_topic":
        return unknown_topic(what)
    return _from_code(error.code(), f"{what}: {_text(error)}")


def _from_code(code: int, message: str) -> HttpError:
    status, name = _of_code(code)
    retry = RETRY_AFTER_S if status in (429, 503) else None
    return HttpError(status, name, message, retry_after_s=retry)


def _of_code(code: int) -> tuple[int, str]:
    """Return the status and our name for one of Kafka's or librdkafka's codes."""
    refused = (503, "unavailable") if code in RETRIABLE else (502, "refused")
    return _CODES.get(code, refused)


def unsupported_type(kind: str, hint: str) -> HttpError:
    """Return the error for a body of a type that is not read."""
    return HttpError(
        415,
        "unsupported_media_type",
        f"Content-Type {kind[:100]!r} is not supported",
        hint=hint,
    )


def unknown_topic(what: str) -> HttpError:
    """Return the error for a topic that does not exist; ``what`` is like ``topic orders``."""
    return HttpError(
        404,
        "unknown_topic",
        f"{what} does not exist",
        hint="The gateway creates no topic. Create it: tidemill topic create",
    )


def unknown_partition(topic: str, given: object, partitions: int, status: int = 404) -> HttpError:
    """Return the error for a partition that a topic does not have."""
    return HttpError(
        status,
        "unknown_partition",
        f"topic {topic} has no partition {str(given)[:20]}",
        hint=f"It has partitions 0 to {partitions - 1}.",
    )


def from_error(error: TidemillError) -> HttpError:
    """Return the answer for one of tidemill's errors."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, RefusedError):
        return _from_code(error.code, str(error))
    if isinstance(error, OutOfRangeError):
        return HttpError(
            *_OUT_OF_RANGE,
            str(error),
            hint="Records before the start were deleted. Continue at the start, or at the end.",
            more={"start": error.start, "end": error.end},
        )
    return _from_first(_TYPES, type(error).__mro__, str(error), error.hint)


def from_names(kinds: Sequence[str], message: str, hint: str | None) -> HttpError:
    """Return the answer for an error of another process, which has sent only its text.

    Args:
        kinds: the names of its class and of the classes above, in the order of Python.
    """
    return _from_first(_BY_NAME, kinds, message, hint)


def _from_first(
    table: Mapping[K, _Answer], kinds: Iterable[K], message: str, hint: str | None
) -> HttpError:
    known = (table[kind] for kind in kinds if kind in table)
    status, code, retry = next(known, (502, "refused", None))
    return HttpError(status, code, message, hint=hint, retry_after_s=retry)


def _text(error: KafkaError) -> str:
    """Return librdkafka's message without its prefixes."""
    text = error.str().rpartition("Broker: ")[2].rpartition("Local: ")[2] or error.name()
    return lower_first(text).rstrip(".")
