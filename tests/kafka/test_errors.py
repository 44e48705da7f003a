"""The table of error codes."""

from __future__ import annotations

import inspect

import pytest
from kio.schema.errors import ErrorCode

from tidemill import errors
from tidemill.kafka.errors import CODES, error_code, error_message

NOT_FOR_CLIENTS = {
    # Start-up.
    "TidemillError",
    "SettingsError",
    "DataDirLockedError",
    "FormatVersionError",
    # Our own client side.
    "UnreachableError",
    "DataLossError",
    "DeliveryError",
    "JavaNotFoundError",
    "JvmStartError",
    "JoinError",
    "MissingPackageError",
    "OptionError",
    "PipelineError",
    "PipelineRunningError",
    "CheckpointRestoredError",
    "RowError",
    "SchemaError",
    "SinkError",
    "WindowError",
    "OutputModeError",
}
"""No handler meets them."""

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__ and kind.__name__ not in NOT_FOR_CLIENTS
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_code(kind: type[errors.TidemillError]) -> None:
    assert any(base in CODES for base in kind.__mro__), (
        "give it a code in tidemill.kafka.errors, or list it above"
    )


def test_every_code_is_one_of_kafkas() -> None:
    for code in CODES.values():
        ErrorCode(code)


def test_base_class_stands_in_for_what_is_not_listed() -> None:
    assert error_code(errors.DiskFullError("full")) == ErrorCode.kafka_storage_error
    assert error_code(errors.RequestTooLargeError("x")) == ErrorCode.invalid_request


def test_group_apis_say_coordinator_not_available() -> None:
    stopping = errors.BrokerStoppingError("x")
    assert error_code(stopping) == ErrorCode.not_leader_or_follower
    assert error_code(stopping, group=True) == ErrorCode.coordinator_not_available


def test_none_and_the_unknown() -> None:
    assert error_code(None) == 0
    assert error_code(ValueError("secret")) == -1
    assert error_message(None) is None
    assert "secret" not in str(error_message(ValueError("secret")))
    assert error_message(errors.BatchTooLargeError("too large")) == (
        "too large. Raise max.message.bytes on the topic, or lower batch.size at the producer."
    )
