"""``tidemill dev`` and ``tidemill serve``: run a broker and print when it is ready."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli import output
from tidemill.cli.options import Config, DataDir, Host, KafkaPort, Set, pairs
from tidemill.cli.output import UsageError
from tidemill.errors import SettingsError

if TYPE_CHECKING:
    from tidemill.cli.server.process import Addresses
    from tidemill.cli.server.settings_file import LoadedSettings


def load_settings(
    config: Path | None,
    data_dir: Path | None = None,
    kafka_port: int | None = None,
    host: str | None = None,
    settings: list[str] | None = None,
) -> LoadedSettings:
    """Read the settings from flags, environment, file and defaults.

    Raises:
        UsageError: a ``--set`` is not KEY=VALUE, or a setting has two flags that differ.
        SettingsError: see ``settings_file.load``.
    """
    from tidemill.cli.server.settings_file import load

    flags: dict[str, tuple[str, object]] = {
        key: ("--set", value) for key, value in pairs(settings, "--set").items()
    }
    own_flags: dict[str, tuple[str, object]] = {
        "data_dir": ("--data-dir", data_dir),
        "kafka.port": ("--kafka-port", kafka_port),
        "host": ("--host", host),
    }
    for key, (flag, value) in own_flags.items():
        if value is None:
            continue  # not given, so it must not replace a --set
        if key in flags and flags[key][1] != str(value):
            raise UsageError(
                f"{key} is given twice: {flag} {value} and --set {key}={flags[key][1]}",
                hint="Leave one of them out.",
            )
        flags[key] = (flag, value)
    return load(config, flags=flags)


def dev(
    data_dir: DataDir = None,
    kafka_port: KafkaPort = None,
    host: Host = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Run a broker for development on the loopback address.

    Prints the address, the folder and commands to try. Ctrl-C stops it cleanly, a second Ctrl-C
    immediately.
    """
    loaded = load_settings(config, data_dir, kafka_port, host, settings)
    _run(loaded, level="warning", hints=True)


def serve(
    config: Config = None,
    data_dir: DataDir = None,
    kafka_port: KafkaPort = None,
    host: Host = None,
    settings: Set = None,
) -> None:
    """Run a broker with the settings of tidemill.toml.

    Ctrl-C or SIGTERM stops it cleanly, a second one immediately.
    """
    _run(load_settings(config, data_dir, kafka_port, host, settings), level="info", hints=False)


def _run(loaded: LoadedSettings, *, level: str, hints: bool) -> None:
    """Run the broker until it is stopped."""
    import structlog

    from tidemill import telemetry
    from tidemill.cli.server import process as server

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

    def ready(at: server.Addresses) -> None:
        data_dir = settings.data_dir.absolute()
        if sys.stdout.isatty():
            # The terminal may be closed by now. Then SIGHUP stops the broker, not this error.
            with contextlib.suppress(OSError):
                print(_greeting(loaded, at, hints=hints), flush=True)
        else:
            event = {
                "event": "ready",
                "kafka": address_text(*at.kafka),
                **({} if at.amqp is None else {"amqp": address_text(*at.amqp)}),
                "data_dir": str(data_dir),
                "pid": os.getpid(),
            }
            print(json.dumps(event, separators=(",", ":")), flush=True)

    def stopping() -> None:
        output.note("Stopping cleanly. A second Ctrl-C stops it immediately.")

    server.run(settings, ready, stopping)
    output.note("Stopped.")


def _check_data_dir(data_dir: Path) -> None:
    """Check that the path is a data folder or can become one. This creates nothing.

    Raises:
        SettingsError: the path, or its nearest existing parent, is not a writable folder.
    """
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


def address_text(host: str, port: int) -> str:
    """Return ``host:port`` for clients. A wildcard address becomes a loopback address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _greeting(loaded: LoadedSettings, at: Addresses, *, hints: bool) -> str:
    from tidemill import __version__

    address = address_text(*at.kafka)
    shown = f"localhost:{at.kafka[1]}" if address.startswith("127.0.0.1:") else address

    def bold(text: str) -> str:
        return output.style(text, "1", sys.stdout)

    lines = [
        f"{bold('tidemill ' + __version__)} is running",
        "",
        f"  kafka     {bold(shown)}   (bootstrap.servers)",
        *([] if at.amqp is None else [f"  amqp      {bold(_amqp_url(loaded, at.amqp))}"]),
        f"  data      {loaded.settings.data_dir.absolute()}",
        f"  settings  {loaded.file or 'defaults'}   (tidemill config show)",
    ]
    if hints:
        to = "" if shown == "localhost:9092" else f" -b {shown}"
        lines += [
            "",
            "Try, in another terminal:",
            f"  tidemill topic create hello --partitions 3{to}",
            f'  echo "hello, world" | tidemill topic produce hello{to}',
            f"  tidemill topic consume hello --from beginning{to}",
        ]
    return "\n".join([*lines, "", "Ctrl-C stops it."])


def _amqp_url(loaded: LoadedSettings, at: tuple[str, int]) -> str:
    """Return the URL for AMQP clients, without the passwords of a file."""
    amqp = loaded.settings.amqp
    scheme = "amqp" if amqp.tls_cert is None else "amqps"
    user = "guest:guest@" if amqp.users_file is None else ""
    return f"{scheme}://{user}{address_text(*at)}/"
