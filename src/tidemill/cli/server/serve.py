"""``tidemill dev`` and ``tidemill serve``: run a broker and print when it is ready."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli import output
from tidemill.cli.options import Config, DataDir, Host, Insecure, Port, Set
from tidemill.cli.server.config import load_settings
from tidemill.errors import SettingsError

if TYPE_CHECKING:
    from tidemill.cli.server.process import Running
    from tidemill.cli.server.settings_file import LoadedSettings


def dev(
    data_dir: DataDir = None,
    port: Port = None,
    host: Host = None,
    config: Config = None,
    settings: Set = None,
    insecure: Insecure = False,
) -> None:
    """Run a broker for development on the loopback address.

    Prints the address, the folder and commands to try. Ctrl-C stops it cleanly, a second Ctrl-C
    immediately.
    """
    loaded = load_settings(config, data_dir, port, host, settings, insecure=insecure)
    _run(loaded, level="warning", hints=True)


def serve(
    config: Config = None,
    data_dir: DataDir = None,
    port: Port = None,
    host: Host = None,
    settings: Set = None,
    insecure: Insecure = False,
) -> None:
    """Run a broker with the settings of tidemill.toml.

    Ctrl-C or SIGTERM stops it cleanly, a second one immediately.
    """
    loaded = load_settings(config, data_dir, port, host, settings, insecure=insecure)
    _run(loaded, level="info", hints=False)


def _run(loaded: LoadedSettings, *, level: str, hints: bool) -> None:
    """Run the broker until it is stopped."""
    import structlog

    from tidemill import telemetry
    from tidemill.cli.server import process as server
    from tidemill.protocols.contract import address_text

    settings = loaded.settings
    _check_data_dir(settings.data_dir)
    if "telemetry.level" in loaded.origins:
        level = settings.telemetry.level
    telemetry.configure(
        level,  # type: ignore[arg-type]
        settings.telemetry.format,
        color=output.colored(sys.stderr),
    )

    if loaded.ignored:
        log = structlog.get_logger("tidemill.server")
        log.info(
            "environment.ignored",
            variables=", ".join(loaded.ignored),
            why="they describe a service (Kubernetes, Docker) and are not settings",
        )

    def ready(running: Sequence[server.Running]) -> None:
        data_dir = settings.data_dir.absolute()
        if sys.stdout.isatty():
            # The terminal may be closed by now. Then SIGHUP stops the broker, not this error.
            with contextlib.suppress(OSError):
                print(_greeting(loaded, running, hints=hints), flush=True)
        else:
            event = {
                "event": "ready",
                **{each.name: address_text(*each.address) for each in running},
                "data_dir": str(data_dir),
                "pid": os.getpid(),
            }
            print(json.dumps(event, separators=(",", ":")), flush=True)

    def stopping() -> None:
        output.note("Stopping cleanly. A second Ctrl-C stops it immediately.")

    server.run(loaded, ready, stopping)
    output.note("Stopped.")


def _check_data_dir(data_dir: Path) -> None:
    """Check that the path is a data folder or can become one. This creates nothing."""
    place = data_dir.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        reason = f"{place} is not a folder"
    elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        reason = f"{place} is not writable"
    else:
        return
    raise SettingsError(
        f"invalid data folder {data_dir}: {reason}",
        hint="Use a folder that you can write to: --data-dir DIR.",
    )


def _is_in_use(host: str, port: int) -> bool:
    """Return whether a process listens on a port. An address that can't be used is not in use."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _greeting(loaded: LoadedSettings, running: Sequence[Running], *, hints: bool) -> str:
    from tidemill import __version__
    from tidemill.cli.server.worker_kinds import KINDS

    def bold(text: str) -> str:
        return output.style(text, "1", sys.stdout)

    lines = [f"{bold('tidemill ' + __version__)} is running", ""]
    examples: list[str] = []
    for each in running:
        address, note = each.protocol.banner(loaded.settings, each.address)
        lines.append(f"  {each.name:<8}  {bold(address)}{'   ' * bool(note)}{note}")
        if each.is_first:
            examples += each.protocol.examples(loaded.settings, each.address)
    for name, url, at in filter(None, (kind.address(loaded.settings) for kind in KINDS)):
        # The worker starts after this. What listens there by now is another process.
        shown = f"{url} starts when port {at[1]} is free: another process has it"
        lines.append(f"  {name:<8}  {shown if _is_in_use(*at) else bold(url)}")
    lines += [
        f"  data      {loaded.settings.data_dir.absolute()}",
        f"  settings  {loaded.file or 'defaults'}   (tidemill config show)",
    ]
    if hints:
        lines += ["", "Try, in another terminal:", *(f"  {example}" for example in examples)]
    return "\n".join([*lines, "", "Ctrl-C stops it."])
