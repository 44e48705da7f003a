"""Kafka's error codes as exceptions, and a retry of the transient ones. Knows no broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tidemill.cli.client import REQUEST_SECONDS
from tidemill.errors import RequestTimedOutError, TidemillError
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
)

T = TypeVar("T")

RETRY_SECONDS = 0.1
"""Pause before a request is sent again."""


class LeaderMovedError(TidemillError):
    """The broker does not lead the partition, or not yet."""


_TRANSIENT = (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
    LeaderMovedError,
)


def check_error_code(code: int, subject: str, message: str | None = None, hint: str = "") -> None:
    """Raise the error for a code in a response.

    Args:
        code: Kafka's number; 0 means success.
        subject: the thing that the code is about. The message begins with it.
        message: the broker's text for it, if the response has one.
        hint: of the error.

    Raises:
        TidemillError: the code is not zero. The type is the one that has this code.
    """
    if code:
        raise error_for_code(code, subject, message, hint)


def error_for_code(
    code: int, subject: str, message: str | None = None, hint: str = ""
) -> TidemillError:
    """Return the error for a code. For the arguments see ``check_error_code``."""
    # Imported here: most commands need neither, and kio takes time to load.
    from kio.schema.errors import ErrorCode

    from tidemill.protocols.kafka.error_codes import CODES

    kinds: dict[int, type[TidemillError]] = {
        number: kind for kind, number in reversed(CODES.items())
    }
    # Our own broker never sends these codes, or means something else by them.
    kinds |= {5: LeaderMovedError, 6: LeaderMovedError, 16: CoordinatorNotAvailableError}
    try:
        name = ErrorCode(code).name.replace("_", " ")
    except ValueError:
        name = f"error {code}"
    return kinds.get(code, TidemillError)(f"{subject}: {message or name}", hint=hint)


def retry_transient(call: Callable[[], T]) -> T:
    """Call again while the error is transient: loading, not available yet, still ending.

    Returns:
        The result of ``call``.

    Raises:
        RequestTimedOutError: the error remained for ten seconds.
        TidemillError: any other error of ``call``.
    """
    deadline = time.monotonic() + REQUEST_SECONDS
    while True:
        try:
            return call()
        except _TRANSIENT as error:
            if time.monotonic() > deadline:
                raise RequestTimedOutError(
                    f"{error}, for {REQUEST_SECONDS:.0f} seconds now", hint="Try again later."
                ) from error
            time.sleep(RETRY_SECONDS)
