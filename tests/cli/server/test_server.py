"""The broker process's own decisions, without a process."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tidemill.cli import output
from tidemill.cli.server import process as server
from tidemill.errors import SettingsError
from tidemill.log.errors import StorageError, SyncFailedError
from tidemill.protocols.amqp.protocol import PROTOCOL


async def test_a_storage_failure_ends_the_process_with_its_own_error() -> None:
    stop = asyncio.Event()
    failed: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(server._stopped_or_failed(stop, failed))
    await asyncio.sleep(0)
    assert not waiting.done()
    failed.set_result(SyncFailedError("fsync of x failed"))
    with pytest.raises(SyncFailedError, match="fsync of x failed") as raised:
        await waiting
    assert output.exit_code(raised.value) == 1


async def test_a_stop_ends_the_wait_without_an_error() -> None:
    stop = asyncio.Event()
    failed: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()
    stop.set()
    await asyncio.wait_for(server._stopped_or_failed(stop, failed), 600)


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.EADDRINUSE, output.AddressInUseError, "another process listens on h:1"),
        (errno.EACCES, SettingsError, "no permission to listen on h:1"),
        (errno.EADDRNOTAVAIL, SettingsError, "can't listen on h:1"),
    ],
)
def test_the_error_for_an_address_that_can_not_be_bound_has_the_reason(
    number: int, kind: type[Exception], said: str
) -> None:
    error = server._bind_error(OSError(number, "x"), "h", 1, PROTOCOL)
    assert type(error) is kind
    assert said in str(error)
