"""The broker process: event loop, broker, protocol servers, signals. Prints nothing.

Start: the broker first (it locks the folder and recovers), then the sockets, so that nobody
connects to a broker that knows nothing yet. Stop: the sockets first, so that answers of requests
in flight still go out, then the broker, which syncs and marks the folder clean.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import signal
from collections.abc import Callable
from typing import Any

import uvloop

from tidemill.cli.output import AddressInUseError
from tidemill.clock import SystemClock
from tidemill.errors import SettingsError, StorageError, TidemillError
from tidemill.settings import Settings
from tidemill.telemetry import get_logger

GRACE_SECONDS = 5.0
"""How long requests in flight may take to end when the broker is asked to stop."""

KEPT_BYTES = 16 << 20
"""Freed memory that stays with the process."""
TRIM_SECONDS = 10.0
"""How often the rest of it is given back."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""From malloc.h of glibc."""

log = get_logger("server")

Ready = Callable[[str, int], None]
"""Called once with the bound host and port."""


def run(settings: Settings, ready: Ready, stopping: Callable[[], None]) -> None:
    """Run a broker until SIGINT or SIGTERM.

    Args:
        settings: the broker's.
        ready: called once clients can connect.
        stopping: called once when a signal has asked it to stop.

    Raises:
        TidemillError: it could not start, or its storage failed while it ran.
    """
    _keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, ready, stopping))


def _keep_freed_memory() -> None:
    """Let malloc keep the buffers of large responses for the next ones.

    By default glibc gives them back to the kernel and gets them anew, page by page: that costs a
    fetch of several megabytes more than copying its records. Other C libraries do as they do.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)


async def _give_memory_back() -> None:
    """What a burst has left behind between memory in use, which malloc keeps by itself."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while malloc_trim is not None:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(malloc_trim, KEPT_BYTES)


async def _serve(settings: Settings, ready: Ready, stopping: Callable[[], None]) -> None:
    from tidemill.broker.broker import Broker
    from tidemill.kafka.server import KafkaServer

    stop = _stop_on_signals(stopping)
    broker = Broker(settings, SystemClock())
    await broker.start()
    was_ready = False
    try:
        kafka = KafkaServer(broker, settings)
        try:
            host, port = await kafka.start()
        except OSError as error:
            raise _bind_error(error, settings.host, settings.kafka.port) from error
        try:
            log.info("ready", host=host, port=port, data_dir=str(settings.data_dir))
            was_ready = True
            ready(host, port)
            trimming = asyncio.create_task(_give_memory_back())
            await _stopped_or_failed(stop, broker.failed)
            trimming.cancel()
        finally:
            log.info("stopping")
            await kafka.stop(GRACE_SECONDS)
    finally:
        await broker.stop()
        if was_ready:
            log.info("stopped")


def _stop_on_signals(stopping: Callable[[], None]) -> asyncio.Event:
    """An event that the first SIGINT, SIGTERM or SIGHUP sets; a second one ends the process at
    once, but for SIGHUP: a terminal that is closed sends it more than once.
    """
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            if number == signal.SIGHUP:
                return
            os._exit(128 + number)
        stop.set()
        stopping()

    loop = asyncio.get_running_loop()
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup wants it to live on
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def _stopped_or_failed(stop: asyncio.Event, failed: asyncio.Future[StorageError]) -> None:
    """Wait for a stop or for the storage to fail.

    Raises:
        StorageError: the storage failed: nothing can be promised any more.
    """
    stopping = asyncio.ensure_future(stop.wait())
    waiting: set[asyncio.Future[Any]] = {stopping, failed}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failed.done():
        raise failed.result()


def _bind_error(error: OSError, host: str, port: int) -> TidemillError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"another process listens on {where}",
            hint="Stop it, or pick another port: --kafka-port 0 takes a free one.",
        )
    if error.errno == errno.EACCES:
        return SettingsError(
            f"not allowed to listen on {where}", hint="Ports below 1024 need privileges."
        )
    number = error.errno or 0  # negative where a name is not resolved
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return SettingsError(
        f"can't listen on {where}: {reason.lower()}",
        hint="Name an address of this machine with --host: 127.0.0.1, or 0.0.0.0 for all.",
    )
