"""Runs the gateway until it is stopped. Must not print."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from tidemill import system
from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import MetricsPublisher
from tidemill.gateway.app import listeners
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.hooks.app import HooksApp
from tidemill.gateway.hooks.settings import DeclaredHooks
from tidemill.gateway.metrics import WORKER, Measured
from tidemill.gateway.parts import Parts
from tidemill.gateway.server import Address, serve
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.users import Users
from tidemill.metrics.process import LoopLag

SWITCH_SECONDS = 0.0005
"""How long the thread of acknowledgements waits for the event loop's thread, while that is busy."""
_SPARE_FILES = 200

Ready = Callable[[Mapping[str, Address]], None]
"""Called once, when clients can connect, with the address of each listener that serves."""


def run(
    kafka: Kafka,
    settings: GatewaySettings,
    hooks: DeclaredHooks,
    console: ConsoleSettings,
    ready: Ready,
) -> None:
    """Serve HTTP until SIGINT or SIGTERM.

    Raises:
        SettingsError: no address can be used, or librdkafka rejects a property.
    """
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # errors are answered and logged here
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    sys.setswitchinterval(SWITCH_SECONDS)
    system.allow_open_files(settings.connections + _SPARE_FILES)
    with asyncio.Runner(loop_factory=system.new_event_loop) as runner:
        runner.run(_serve(kafka, settings, hooks, console, ready))


async def _serve(
    kafka: Kafka,
    settings: GatewaySettings,
    hooks: DeclaredHooks,
    console: ConsoleSettings,
    ready: Ready,
) -> None:
    incoming = HooksApp(kafka, hooks)
    parts = Parts.start(kafka, settings)
    users = Users(parts, settings.schemes())
    try:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _stop, stop, parts, users)
        incoming.start()
        served = [
            replace(each, app=Measured(each.app, parts.registry, each.name))
            for each in (*listeners(parts, users, console), *incoming.listeners())
        ]
        with MetricsPublisher(kafka, WORKER, parts.registry):
            lag = LoopLag(parts.registry)
            try:
                await serve(served, stop, ready)
            finally:
                lag.stop()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await incoming.stop()
            await users.close()
            await parts.close()


def _stop(stop: asyncio.Event, parts: Parts, users: Users) -> None:
    stop.set()
    parts.stop()
    users.stop()
