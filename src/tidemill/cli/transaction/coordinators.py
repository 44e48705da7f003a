"""Requests to transaction coordinators: list, describe and fence transactional ids (KIP-664).

This module must not print.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.cli.broker_requests import BrokerRequests, check_error_code, retry_transient
from tidemill.cli.client import TopicPartitionKey
from tidemill.cli.output import UsageError
from tidemill.errors import RequestTimedOutError
from tidemill.kafka_client.settings import Address
from tidemill.protocols.kafka.errors import UnsupportedVersionError
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionTimeoutError,
    TransactionalIdNotFoundError,
)

INIT_PRODUCER_ID, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 22, 65, 66

INIT_VERSIONS = range(2, 6)
LIST_VERSIONS = range(3)
FIRST_VERSION = range(1)

STATES = {
    "empty": "Empty",
    "ongoing": "Ongoing",
    "prepare-commit": "PrepareCommit",
    "prepare-abort": "PrepareAbort",
    "complete-commit": "CompleteCommit",
    "complete-abort": "CompleteAbort",
    "prepare-epoch-fence": "PrepareEpochFence",
    "dead": "Dead",
}
"""States as commands write them -> Kafka's names."""
OPEN_STATES = ("ongoing", "prepare-commit", "prepare-abort", "prepare-epoch-fence")
"""Readers with read_committed wait for transactions in one of these."""

_TRANSACTIONAL_ID_NOT_FOUND = 105
_INVALID_REGULAR_EXPRESSION = 128


def state_text(name: str) -> str:
    """Return Kafka's name of a state as commands write it: ``prepare-commit``."""
    return next((ours for ours, kafka in STATES.items() if kafka == name), name.lower())


@dataclass(frozen=True)
class Listing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True)
class Description:
    """A transactional id as its coordinator describes it.

    Attributes:
        started_ms: when the open transaction began; None if none is open.
        partitions: the partitions that it has written to. If it is being ended, those that have no
            marker yet.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartitionKey, ...]
    coordinator: int

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self.producer_id, self.producer_epoch

    @property
    def is_open(self) -> bool:
        """Whether readers with read_committed wait for it."""
        return self.state in OPEN_STATES

    @property
    def open_ms(self) -> int | None:
        """The time since it began, by this machine's clock, or None if none is open."""
        return None if self.started_ms is None else max(now_ms() - self.started_ms, 0)


def now_ms() -> int:
    """Return the time of this machine in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def list_transactions(
    requests: BrokerRequests,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    open_longer_than_ms: int | None = None,
    id_pattern: str | None = None,
) -> list[Listing]:
    """Return the transactional ids of all coordinators, sorted."""
    if open_longer_than_ms is not None:
        # Brokers apply the filter to ended transactions too.
        states = [each for each in states or OPEN_STATES if each in OPEN_STATES]
        if not states:
            return []
    request = {
        "state_filters": [STATES[each] for each in states],
        "producer_id_filters": list(producer_ids),
        "duration_filter": -1 if open_longer_than_ms is None else open_longer_than_ms,
        "transactional_id_pattern": id_pattern,
    }
    needed = 2 if id_pattern is not None else 1 if open_longer_than_ms is not None else 0
    found: list[Listing] = []
    for broker_id, broker in requests.brokers().items():
        _check_supports(requests, broker, needed)

        def call(broker: Address = broker) -> dict[str, Any]:
            answer = requests.ask(broker, LIST_TRANSACTIONS, LIST_VERSIONS, request)
            if id_pattern and answer["error_code"] == _INVALID_REGULAR_EXPRESSION:
                raise _invalid_pattern(id_pattern)
            check_error_code(answer["error_code"], f"transactions of the broker at {broker}")
            return answer

        found += [
            Listing(
                each["transactional_id"],
                state_text(each["transaction_state"]),
                each["producer_id"],
                broker_id,
            )
            for each in retry_transient(call)["transaction_states"]
        ]
    return sorted(found, key=lambda each: each.transactional_id)


def _invalid_pattern(pattern: str) -> UsageError:
    """Return the error for a pattern that the broker rejected.

    The broker's answer has no text. So this evaluates the pattern as the broker does, to get a
    reason and a hint.
    """
    from tidemill.state.errors import InvalidRegularExpressionError
    from tidemill.state.patterns import id_matcher

    try:
        id_matcher(pattern)
    except InvalidRegularExpressionError as error:
        return UsageError(f"--id-pattern: {error}", hint=error.hint)
    return UsageError(
        f"--id-pattern: the broker does not support the regular expression {pattern!r}",
        hint="Without google-re2, a broker supports only literals and '.*'.",
    )


def _check_supports(requests: BrokerRequests, broker: Address, needed: int) -> None:
    """Check that the broker supports a filter. An older one would ignore it and list all ids."""
    if needed and requests.version(broker, LIST_TRANSACTIONS, LIST_VERSIONS) < needed:
        option = "--id-pattern" if needed > 1 else "--open-longer-than"
        raise UnsupportedVersionError(
            f"the broker at {broker} does not support {option}",
            hint="Apache Kafka supports --open-longer-than since 3.8, --id-pattern since 4.1.",
        )


def describe_transaction(requests: BrokerRequests, transactional_id: str) -> Description:
    """Return one transactional id."""
    found = describe_transactions(requests, [transactional_id])
    if not found:
        raise TransactionalIdNotFoundError(
            f"transactional id {transactional_id} does not exist",
            hint="List the ids: tidemill transaction list",
        )
    return found[0]


def describe_transactions(
    requests: BrokerRequests, transactional_ids: Sequence[str]
) -> list[Description]:
    """Return the ids that exist."""
    found: list[Description] = []
    by_coordinator: dict[tuple[int, Address], list[str]] = {}
    for each, coordinator in requests.coordinators(transactional_ids).items():
        by_coordinator.setdefault(coordinator, []).append(each)
    for (number, broker), ids in by_coordinator.items():

        def call(
            number: int = number, broker: Address = broker, ids: list[str] = ids
        ) -> list[Description]:
            request = {"transactional_ids": ids}
            answer = requests.ask(broker, DESCRIBE_TRANSACTIONS, FIRST_VERSION, request)
            return [
                _description(state, number)
                for state in answer["transaction_states"]
                if state["error_code"] != _TRANSACTIONAL_ID_NOT_FOUND
            ]

        found += retry_transient(call)
    return found


def _description(state: dict[str, Any], coordinator: int) -> Description:
    check_error_code(state["error_code"], f"transactional id {state['transactional_id']}")
    name = state_text(state["transaction_state"])
    started = state["transaction_start_time"]
    return Description(
        transactional_id=state["transactional_id"],
        state=name,
        producer_id=state["producer_id"],
        producer_epoch=state["producer_epoch"],
        timeout_ms=state["transaction_timeout"],
        # For an ended transaction, brokers may send its old start or zero.
        started_ms=started if started > 0 and name in OPEN_STATES else None,
        partitions=tuple(
            sorted(
                (t["topic"], partition) for t in state["topics"] for partition in t["partitions"]
            )
        ),
        coordinator=coordinator,
    )


def fence(requests: BrokerRequests, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
    """Abort the open transaction by starting as a new producer (KIP-98, KIP-664).

    Args:
        timeout_ms: the transaction timeout of the new producer, which is stored. Pass the old one,
            so that only the epoch changes. Apache Kafka also waits so long for its own write.

    Returns:
        Producer id and epoch of the new producer, which no client uses.
    """
    _, coordinator = requests.coordinators([transactional_id])[transactional_id]

    def call(timeout_ms: int) -> tuple[int, int]:
        request = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
        answer = requests.ask(coordinator, INIT_PRODUCER_ID, INIT_VERSIONS, request)
        check_error_code(answer["error_code"], f"transactional id {transactional_id}")
        return answer["producer_id"], answer["producer_epoch"]

    try:
        try:
            return retry_transient(lambda: call(timeout_ms))
        except InvalidTransactionTimeoutError:  # the broker's limit is lower than before
            return retry_transient(lambda: call(1))
    except RequestTimedOutError as error:
        raise ConcurrentTransactionsError(
            str(error),
            hint="The abort is decided, and waits for its partitions. Show them: "
            f"tidemill transaction describe {transactional_id}",
        ) from error
