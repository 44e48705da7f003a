"""Asks coordinators to list and describe transactions, and to fence a producer (KIP-664)."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.errors import TidemillError
from tidemill.kafka_client.admin.requests import (
    BrokerRequests,
    Place,
    check_error_code,
    retry_transient,
)
from tidemill.kafka_client.errors import RefusedError
from tidemill.kafka_client.settings import Address
from tidemill.kafka_codec.declared import INIT_PRODUCER_ID

DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
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
"""States as users write them -> Kafka's names."""
OPEN_STATES = ("ongoing", "prepare-commit", "prepare-abort", "prepare-epoch-fence")
"""Readers with read_committed wait for transactions in one of these."""
MOST_DESCRIBED = 5000
"""Transactions that one request describes."""
INVALID_REGULAR_EXPRESSION = 128
_COORDINATOR_NOT_AVAILABLE, _INVALID_TIMEOUT, _TRANSACTIONAL_ID_NOT_FOUND = 15, 50, 105


class FilterNotSupportedError(TidemillError):
    """A broker is too old for a filter. It would ignore the filter and list all ids.

    Attributes:
        broker: The broker.
        filter: The argument of ``list_transactions``.
    """

    def __init__(self, broker: Address, filter_: str) -> None:
        super().__init__(f"the broker at {broker} does not support the filter {filter_}")
        self.broker = broker
        self.filter = filter_


@dataclass(frozen=True, slots=True)
class Listing:
    """A transactional id as its coordinator lists it.

    Attributes:
        coordinator: The id of the coordinator.
    """

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, slots=True)
class Description:
    """A transactional id as its coordinator describes it.

    Attributes:
        started_ms: When the open transaction began; None if none is open.
        partitions: The partitions that it has written to. If it is being ended, those that have no
            marker yet.
        coordinator: The id of the coordinator.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[Place, ...]
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


def state_text(name: str) -> str:
    """Return Kafka's name of a state as users write it: ``PrepareCommit`` as ``prepare-commit``."""
    return re.sub(r"(?<=.)(?=[A-Z])", "-", str(name)).lower() or "unknown"


def list_transactions(
    requests: BrokerRequests,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    open_longer_than_ms: int | None = None,
    id_pattern: str | None = None,
) -> list[Listing]:
    """Return the transactional ids of all coordinators, sorted.

    Args:
        states: Only ids in these states, keys of ``STATES``.
        open_longer_than_ms: Only transactions that are open for longer.
        id_pattern: Only ids that this regular expression (RE2) matches as a whole.

    Raises:
        FilterNotSupportedError: A broker is too old for a filter.
        RefusedError: A broker refuses, for example the pattern.
    """
    if open_longer_than_ms is not None:
        # Brokers apply the filter to ended transactions too.
        states = [each for each in states or OPEN_STATES if each in OPEN_STATES]
        if not states:
            return []
    tree = {
        "state_filters": [STATES[each] for each in states],
        "producer_id_filters": list(producer_ids),
        "duration_filter": -1 if open_longer_than_ms is None else open_longer_than_ms,
        "transactional_id_pattern": id_pattern,
    }
    filters = ("", "open_longer_than_ms", "id_pattern")  # by the version that has it first
    needed = 2 if id_pattern is not None else 1 if open_longer_than_ms is not None else 0
    found: list[Listing] = []
    for node, broker in requests.brokers().items():
        if needed and requests.version(broker, LIST_TRANSACTIONS, (0, 2)) < needed:
            raise FilterNotSupportedError(broker, filters[needed])

        def ask(node: int = node, broker: Address = broker) -> list[Listing]:
            answer = requests.ask(broker, LIST_TRANSACTIONS, (0, 2), tree)
            check_error_code(answer.error_code, f"transactions of the broker at {broker}")
            return [
                Listing(
                    each.transactional_id,
                    state_text(each.transaction_state),
                    each.producer_id,
                    node,
                )
                for each in answer.transaction_states
            ]

        found += retry_transient(ask)
    return sorted(found, key=lambda each: each.transactional_id)


def describe_listed(requests: BrokerRequests, listed: Iterable[Listing]) -> list[Description]:
    """Return the listed ids that still exist, with their transactions.

    Raises:
        RefusedError: A broker refuses, or a coordinator is gone since.
    """
    by_coordinator: dict[int, list[str]] = {}
    for each in listed:
        by_coordinator.setdefault(each.coordinator, []).append(each.transactional_id)
    brokers = requests.brokers() if by_coordinator else {}
    found: list[Description] = []
    for node, ids in by_coordinator.items():
        if node not in brokers:
            raise RefusedError(
                _COORDINATOR_NOT_AVAILABLE, f"the coordinator {node}", "not available"
            )
        for at in range(0, len(ids), MOST_DESCRIBED):
            found += _describe(requests, node, brokers[node], ids[at : at + MOST_DESCRIBED])
    return found


def describe_transaction(requests: BrokerRequests, transactional_id: str) -> Description | None:
    """Return one transactional id; None if it does not exist."""
    node, coordinator = requests.transaction_coordinator(transactional_id)
    return next(iter(_describe(requests, node, coordinator, [transactional_id])), None)


def _describe(
    requests: BrokerRequests, node: int, coordinator: Address, ids: Sequence[str]
) -> list[Description]:
    tree = {"transactional_ids": ids}

    def ask() -> list[Description]:
        answer = requests.ask(coordinator, DESCRIBE_TRANSACTIONS, (0, 0), tree)
        return [
            _description(state, node)
            for state in answer.transaction_states
            if state.error_code != _TRANSACTIONAL_ID_NOT_FOUND
        ]

    return retry_transient(ask)


def _description(state: Any, coordinator: int) -> Description:
    check_error_code(state.error_code, f"transactional id {state.transactional_id}")
    name, started = state_text(state.transaction_state), state.transaction_start_time
    return Description(
        transactional_id=state.transactional_id,
        state=name,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout,
        # For an ended transaction, brokers may send its old start or zero.
        started_ms=started if started > 0 and name in OPEN_STATES else None,
        partitions=tuple(
            sorted((each.topic, number) for each in state.topics for number in each.partitions)
        ),
        coordinator=coordinator,
    )


def fence(requests: BrokerRequests, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
    """Abort the open transaction by starting as a new producer (KIP-98, KIP-664).

    Args:
        timeout_ms: The transaction timeout of the new producer, which is stored. Pass the old one,
            so that only the epoch changes. Apache Kafka also waits so long for its own write.

    Returns:
        Producer id and epoch of the new producer, which no client uses.

    Raises:
        RequestTimedOutError: The abort is decided, and still waits for partitions.
        RefusedError: The broker refuses.
    """
    _, coordinator = requests.transaction_coordinator(transactional_id)

    def call(timeout_ms: int) -> tuple[int, int]:
        tree = {"transactional_id": transactional_id, "transaction_timeout": timeout_ms}
        answer = requests.ask(coordinator, INIT_PRODUCER_ID, (2, 5), tree)
        check_error_code(answer.error_code, f"transactional id {transactional_id}")
        return answer.producer_id, answer.producer_epoch

    try:
        return retry_transient(lambda: call(timeout_ms))
    except RefusedError as error:
        if error.code != _INVALID_TIMEOUT:
            raise
        return retry_transient(lambda: call(1))  # the broker's limit is lower than before
