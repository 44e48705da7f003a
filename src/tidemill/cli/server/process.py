"""Runs the broker process: event loop, broker, protocol servers and signals.

It starts the broker first, which locks the folder and recovers, and then the sockets, so that no
client connects before recovery is complete, and then the workers. It stops in the other order, so
that workers can end their work and requests in progress are still answered; the broker syncs last
and marks the folder as clean. This module must not print.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from tidemill import system
from tidemill.cli.output import AddressInUseError
from tidemill.cli.server import start_checks
from tidemill.cli.server.admins import read_admins
from tidemill.cli.server.service import ServiceManager
from tidemill.cli.server.settings_file import LoadedSettings
from tidemill.cli.server.worker_kinds import Broker, worker_specs
from tidemill.cli.server.worker_logins import WorkerLogins
from tidemill.clock import SystemClock
from tidemill.errors import SettingsError, TidemillError
from tidemill.log.errors import StorageError
from tidemill.metrics.errors import add_errors
from tidemill.metrics.process import LoopLag, add_process
from tidemill.protocols.contract import Address, Protocol, Server, address_text
from tidemill.protocols.table import protocols
from tidemill.settings import Settings
from tidemill.workers.control import ControlSocket
from tidemill.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine

SWITCH_SECONDS = 0.0005
"""How long a thread that has synced a file waits for the event loop's thread, while that is busy.
Python's own 5 ms would delay each acknowledgement under load by twice as much."""
GRACE_SECONDS = 5.0
"""How long requests in progress can take when the broker stops."""

KEPT_BYTES = 16 << 20
"""How much freed memory the process keeps."""
TRIM_SECONDS = 10.0
"""How often it returns the rest to the kernel."""

log = structlog.get_logger("tidemill.server")


@dataclass(frozen=True)
class Running:
    """A listener of a protocol that the broker serves, and the address that it is bound to."""

    protocol: Protocol
    server: Server
    address: Address

    @property
    def name(self) -> str:
        """The name of the listener."""
        return self.server.listener.name

    @property
    def is_first(self) -> bool:
        """Whether it is the protocol's own listener, and not one by name."""
        return self.name == self.protocol.name


Ready = Callable[[Sequence[Running]], None]
"""Called once, when clients can connect."""


def run(loaded: LoadedSettings, ready: Ready, stopping: Callable[[], None]) -> None:
    """Run a broker and its workers until SIGINT or SIGTERM.

    ``ready`` is called once, when clients can connect, and ``stopping`` after the first signal.
    """
    system.keep_freed_memory(KEPT_BYTES)
    manager = ServiceManager()

    def report_ready(running: Sequence[Running]) -> None:
        ready(running)
        manager.ready(f"Serves Kafka clients at {address_text(*running[0].address)}")

    def report_stop() -> None:
        manager.stopping()
        stopping()

    try:
        with asyncio.Runner(loop_factory=system.new_event_loop) as runner:
            runner.run(_serve(loaded, report_ready, report_stop))
    finally:
        manager.close()


async def _return_memory() -> None:
    """Return freed memory to the kernel from time to time."""
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        await asyncio.to_thread(system.return_memory, KEPT_BYTES)


def _start_tasks(
    engine: Engine, settings: Settings, running: Sequence[Running]
) -> list[asyncio.Task[None]]:
    """Start what runs beside the servers until it is cancelled."""
    tasks = [asyncio.create_task(_return_memory())]
    elsewhere = {each.name: each.protocol.advertised(each.server) for each in running}
    if any(elsewhere.values()):
        from tidemill.cli.server import advertised
        from tidemill.kafka_client.settings import Address

        found = [(name, Address(*at)) for name, at in elsewhere.items() if at is not None]
        tasks.append(asyncio.create_task(advertised.check(found)))
    if settings.telemetry.statsd:
        from tidemill.cli.server.statsd import StatsdSender

        sender = StatsdSender(engine.metrics, settings.telemetry)
        tasks.append(asyncio.create_task(sender.run()))
    return tasks


async def _serve(loaded: LoadedSettings, ready: Ready, stopping: Callable[[], None]) -> None:
    from tidemill.engine.engine import Engine
    from tidemill.net import garbage

    settings = loaded.settings
    limits = start_checks.fit_open_files(settings.limits)
    settings = settings.model_copy(update={"limits": limits})
    system.keep_spare_descriptors()
    for protocol in protocols():
        start_checks.check_addresses(protocol.unguarded(settings), insecure=settings.insecure)
    engine = Engine(settings, SystemClock(), admins=read_admins(settings))
    workers = _worker_logins(loaded)
    servers = _servers(engine, settings, workers)
    encrypted = [server.listener for _, server in servers if server.listener.tls.is_used]
    add_process(engine.metrics)
    add_errors(engine.metrics)

    def reload() -> None:
        for listener in encrypted:
            listener.reload_tls()

    stop = _stop_on_signals(stopping, reload if encrypted else None)
    await engine.start()
    was_ready = False
    try:
        start_checks.check_folder(settings.data_dir)
        start_checks.check_users(
            needed=workers.is_needed, stored=engine.logins.has_users, settings=settings
        )
        try:
            running = await _listen_all(servers, settings)
            garbage.tune()
            sys.setswitchinterval(SWITCH_SECONDS)
            host, port = running[0].address
            supervisor = _supervisor(loaded, engine, running, workers)
            _renew_trust(running, settings, supervisor)
            control = ControlSocket(supervisor, settings.data_dir)
            await control.start()
            log.info("ready", host=host, port=port, data_dir=str(settings.data_dir))
            was_ready = True
            ready(running)
            tasks = _start_tasks(engine, settings, running)
            lag = LoopLag(engine.metrics)
            supervisor.start()
            try:
                await _stopped_or_failed(stop, engine.failed)
            finally:
                log.info("stopping")
                for task in tasks:
                    task.cancel()
                lag.stop()
                await supervisor.stop()
                await control.stop()
        finally:
            await asyncio.gather(*(server.stop(GRACE_SECONDS) for _, server in servers))
    finally:
        await engine.stop()
        if was_ready:
            log.info("stopped")


def _servers(
    engine: Engine, settings: Settings, workers: WorkerLogins
) -> list[tuple[Protocol, Server]]:
    """Return the servers of the protocols that are switched on, in order.

    They share the memory of requests, and what logins share.
    """
    from tidemill.net.budget import Budget
    from tidemill.net.metrics import add_listeners
    from tidemill.protocols.logins.logins import Logins

    budget, logins = (
        Budget(settings.limits.total_inflight_bytes),
        Logins(settings, lambda: engine.logins, workers.users),
    )
    servers: list[tuple[Protocol, Server]] = []
    for protocol in protocols():
        if protocol.is_enabled(settings):
            for server in protocol.servers(engine, settings, budget, logins):
                servers.append((protocol, server))
                server.listener.tls.context()  # before anything is started
    add_listeners(engine.metrics, [server.listener for _, server in servers], budget)
    return servers


def _worker_logins(loaded: LoadedSettings) -> WorkerLogins:
    """Return the logins of the workers, with a user for each that has none in the settings."""
    settings, somewhere = loaded.settings, ("127.0.0.1", 0)
    client: dict[str, str] = {}
    for protocol in protocols():
        client.update(protocol.client_settings(settings, somewhere))
    logins = WorkerLogins(settings, client)
    for spec in worker_specs(Broker(settings, client, loaded.file, lambda _: False)):
        logins.add(spec.name)
    return logins


def _supervisor(
    loaded: LoadedSettings, engine: Engine, running: Sequence[Running], logins: WorkerLogins
) -> Supervisor:
    """Return the supervisor of the workers, which is not started."""

    def has_topic(name: str) -> bool:
        try:
            engine.inner_door().topics.get(name)
        except TidemillError:
            return False
        return True

    client = client_settings(running, loaded.settings)
    addresses = {each.name: each.address for each in running}
    specs = worker_specs(Broker(loaded.settings, client, loaded.file, has_topic, addresses))
    return Supervisor([replace(each, env=logins.environment(each.name)) for each in specs])


def _renew_trust(running: Sequence[Running], settings: Settings, supervisor: Supervisor) -> None:
    """Let workers read the broker's certificate again when they would refuse a new one.

    They trust the file with the broker's own certificate, and librdkafka reads it only when a
    client is made. A certificate of the same authority needs no restart.
    """
    why = "the broker has a new certificate, which workers trust after they have read it"
    for each in running:
        known = each.protocol.client_settings(settings, each.address)
        if each.is_first and "ssl.ca.location" in known:
            each.server.listener.on_strange_certificate = lambda: supervisor.restart_all(why)


def client_settings(running: Sequence[Running], settings: Settings) -> dict[str, str]:
    """Return the properties with which a Kafka client on this machine reaches the broker."""
    found: dict[str, str] = {}
    for each in running:
        if each.is_first:
            found.update(each.protocol.client_settings(settings, each.address))
    return found


async def _listen_all(
    servers: Sequence[tuple[Protocol, Server]], settings: Settings
) -> list[Running]:
    """Bind all sockets; return the protocols that are served."""
    return [
        Running(protocol, server, address)
        for protocol, server in servers
        if (address := await _listen(protocol, server, settings)) is not None
    ]


async def _listen(protocol: Protocol, server: Server, settings: Settings) -> Address | None:
    """Bind a server's socket; return host and port as bound.

    None if another process listens there, and the broker does not need this protocol.
    """
    try:
        return await server.start()
    except OSError as error:
        host, port = server.listener.address
        if error.errno == errno.EADDRINUSE and not protocol.is_needed:
            log.warning(
                "listener.not_served",
                listener=protocol.name,
                host=host,
                port=port,
                why="another process listens there",
                hint=f"Use another port: {protocol.free_port} picks a free one.",
            )
            return None
        raise _bind_error(error, host, port, protocol) from error


def _stop_on_signals(
    stopping: Callable[[], None], reload: Callable[[], None] | None
) -> asyncio.Event:
    """Return an event that the first SIGINT, SIGTERM or SIGHUP sets.

    A second SIGINT or SIGTERM ends the process immediately. A second SIGHUP does not: a terminal
    that is closed sends several. SIGHUP calls ``reload`` if there is one and the terminal is open.
    """
    stop = asyncio.Event()
    had_terminal = system.has_terminal()

    def on_signal(number: int) -> None:
        hangup = number == signal.SIGHUP and had_terminal and not system.has_terminal()
        if number == signal.SIGHUP and reload is not None and not hangup and not stop.is_set():
            reload()
            return
        if stop.is_set():
            if number == signal.SIGHUP:
                return
            os._exit(128 + number)
        stop.set()
        stopping()

    loop = asyncio.get_running_loop()
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores SIGHUP
        signals.append(signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    return stop


async def _stopped_or_failed(stop: asyncio.Event, failed: asyncio.Future[StorageError]) -> None:
    """Wait until the broker is to stop or its storage has failed."""
    stopping = asyncio.ensure_future(stop.wait())
    waiting: set[asyncio.Future[Any]] = {stopping, failed}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if failed.done():
        raise failed.result()


def _bind_error(error: OSError, host: str, port: int, protocol: Protocol) -> TidemillError:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"another process listens on {where}",
            hint=f"Stop it, or use another port: {protocol.free_port} picks a free one.",
        )
    if error.errno == errno.EACCES:
        return SettingsError(
            f"no permission to listen on {where}", hint="Ports below 1024 need privileges."
        )
    number = error.errno or 0  # negative if a name can't be resolved
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return SettingsError(
        f"can't listen on {where}: {reason.lower()}",
        hint="Use an address of this machine with --host: 127.0.0.1, or 0.0.0.0 for all.",
    )
