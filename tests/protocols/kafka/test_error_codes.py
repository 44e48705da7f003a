"""The table of error codes."""

from __future__ import annotations

import inspect

import pytest
from kio.schema.errors import ErrorCode

from tidemill import errors
from tidemill.engine import errors as engine_errors
from tidemill.engine.errors import BrokerStoppingError
from tidemill.errors import TidemillError
from tidemill.log import errors as log_errors
from tidemill.log.errors import BatchTooLargeError, DiskFullError
from tidemill.net import errors as net_errors
from tidemill.net.errors import RequestTooLargeError
from tidemill.protocols.kafka import errors as kafka_errors
from tidemill.protocols.kafka.error_codes import CODES, error_code, error_message
from tidemill.state import errors as state_errors

NOT_FOR_CLIENTS = {
    # Start-up.
    "TidemillError",
    "SettingsError",
    "ExtensionError",
    "DataDirLockedError",
    "FormatVersionError",
    # Only its subclasses are raised.
    "AuthorizationError",
    "BadRecordsError",
    # Kafka has no exchanges.
    "ExchangeAuthorizationError",
    # Our own client side.
    "UnreachableError",
    "NotAllowedError",
    "StateConflictError",
    "DataLossError",
    "DurationError",
    "OptionError",
    "ParseLimitError",
    "SchemaError",
}
"""No handler meets them."""

FLOORS = (errors, log_errors, state_errors, engine_errors, net_errors, kafka_errors)

KINDS = [
    kind
    for floor in FLOORS
    for _, kind in inspect.getmembers(floor, inspect.isclass)
    if issubclass(kind, Exception)
    and kind.__module__ == floor.__name__
    and kind.__name__ not in NOT_FOR_CLIENTS
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_code(kind: type[TidemillError]) -> None:
    assert any(base in CODES for base in kind.__mro__), (
        "give it a code in tidemill.protocols.kafka.error_codes, or list it above"
    )


def test_every_code_is_one_of_kafkas() -> None:
    for code in CODES.values():
        ErrorCode(code)


def test_an_error_that_is_not_listed_has_the_code_of_its_base_class() -> None:
    assert error_code(DiskFullError("full")) == ErrorCode.kafka_storage_error
    assert error_code(RequestTooLargeError("x")) == ErrorCode.invalid_request


def test_group_apis_say_coordinator_not_available() -> None:
    stopping = BrokerStoppingError("x")
    assert error_code(stopping) == ErrorCode.not_leader_or_follower
    assert error_code(stopping, group=True) == ErrorCode.coordinator_not_available


def test_no_error_and_an_unknown_error() -> None:
    assert error_code(None) == 0
    assert error_code(ValueError("secret")) == -1
    assert error_message(None) is None
    assert "secret" not in str(error_message(ValueError("secret")))
    assert error_message(BatchTooLargeError("too large")) == (
        "too large. Raise max.message.bytes on the topic, or lower batch.size at the producer."
    )


def test_an_error_that_quotes_long_names_fits_into_a_string_of_the_protocol() -> None:
    text = error_message(BatchTooLargeError(f"group {'é' * 32_000} is not {'ü' * 32_000}."))
    assert text is not None
    assert text.startswith("group éé")
    assert text.endswith(f"üü. {BatchTooLargeError.default_hint}")
    assert len(text.encode()) < 32_767
