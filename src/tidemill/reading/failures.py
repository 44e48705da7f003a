"""The errors of reading a range, with the same texts in both editions of ``fetch``.

Must not know: Spark, Kafka clients, queries.
"""

from __future__ import annotations

import logging

from tidemill.errors import DataLossError, RequestTimedOutError, UnreachableError
from tidemill.reading.plan import FetchPlan
from tidemill.reading.ranges import OffsetRange

log = logging.getLogger("tidemill.reading")


def deleted(wanted: OffsetRange, position: int, plan: FetchPlan) -> None:
    """Report that the partition does not exist any more."""
    _lost(f"{wanted.topic}-{wanted.partition} was deleted, with offsets from {position}", plan)


def removed(
    wanted: OffsetRange, position: int, plan: FetchPlan, *, first: int, last: int, cause: str
) -> None:
    """Report that the log does not contain the offset.

    Args:
        last: The offset of its next record.
    """
    _lost(
        f"{wanted.topic}-{wanted.partition} has offsets {first} to {last}, but {position} to "
        f"{wanted.end} were not read yet ({cause})",
        plan,
    )


def _lost(message: str, plan: FetchPlan) -> None:
    if plan.fail_on_data_loss:
        raise DataLossError(message)
    log.warning("%s; continuing without them because failOnDataLoss is false", message)


def timed_out(
    wanted: OffsetRange, position: int, plan: FetchPlan, cause: str
) -> RequestTimedOutError:
    """Return the error if no record came in time.

    Args:
        position: The offset of the next record.
        cause: The end of the sentence: ``: `` and the last error, or an empty string.
    """
    return RequestTimedOutError(
        f"{wanted.topic}-{wanted.partition}: no record at offset {position} (of "
        f"{wanted.start} to {wanted.end}) within {plan.timeout_ms} ms{cause}",
        hint="Check the broker, or raise kafkaConsumer.pollTimeoutMs.",
    )


def unreadable(
    wanted: OffsetRange, position: int, cause: str, hint: str | None = None
) -> UnreachableError:
    """Return the error if the partition can't be read."""
    where = f"{wanted.topic}-{wanted.partition} at offset {position}"
    return UnreachableError(f"can't read {where}: {cause}", hint=hint)


def rejected(servers: str, cause: str) -> UnreachableError:
    """Return the error if waiting can't help: wrong credentials, or TLS does not match."""
    return UnreachableError(
        f"the brokers at {servers} rejected the connection: {cause}",
        hint="Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.",
    )
