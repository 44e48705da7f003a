"""``tidemill dev`` and ``tidemill serve``: options, and what is said when the broker is ready."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.errors import SettingsError

if TYPE_CHECKING:
    from tidemill.cli.settings_file import LoadedSettings

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The data folder.", show_default=False),
]
KafkaPort = Annotated[
    int | None,
    typer.Option(
        "--kafka-port", metavar="N", help="Port of the Kafka protocol; 0 picks a free one."
    ),
]
Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to bind.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file; default: tidemill.toml here, if there is one.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting that 'tidemill config show' lists."
    ),
]


def load_settings(
    config: Path | None,
    data_dir: Path | None = None,
    kafka_port: int | None = None,
    host: str | None = None,
    settings: list[str] | None = None,
) -> LoadedSettings:
    """Settings from flags, environment, file and defaults.

    Raises:
        SettingsError: see ``settings_file.load``.
    """
    from tidemill.cli.settings_file import load

    flags: dict[str, tuple[str, object]] = {}
    for text in settings or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise output.UsageError(f"--set {text}: expected KEY=VALUE")
        flags[key] = ("--set", value)
    flags["data_dir"] = ("--data-dir", data_dir)
    flags["kafka.port"] = ("--kafka-port", kafka_port)
    flags["host"] = ("--host", host)
    return load(config, flags=flags)


def dev(
    data_dir: DataDir = None,
    kafka_port: KafkaPort = None,
    host: Host = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Run a broker with safe defaults on loopback, for development.

    Prints where things are and what to try next. Ctrl-C stops it cleanly; a second Ctrl-C at once.
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
    """Run a broker for good, with the settings of tidemill.toml.

    Ctrl-C or SIGTERM stops it cleanly; a second one at once.
    """
    _run(load_settings(config, data_dir, kafka_port, host, settings), level="info", hints=False)


def _run(loaded: LoadedSettings, *, level: str, hints: bool) -> None:
    """Run the broker until it is stopped; the exit code says how it went."""
    from tidemill import telemetry
    from tidemill.cli import server

    settings = loaded.settings
    _check_data_dir(settings.data_dir)
    if "telemetry.level" in loaded.origins:
        level = settings.telemetry.level
    telemetry.configure(
        level,  # type: ignore[arg-type]
        settings.telemetry.format,
        color=output.colored(sys.stderr),
    )

    def ready(host: str, port: int) -> None:
        data_dir = settings.data_dir.absolute()
        if sys.stdout.isatty():
            # A terminal that is closed meanwhile is no fault of the broker: SIGHUP stops it.
            with contextlib.suppress(OSError):
                print(_greeting(loaded, host, port, hints=hints), flush=True)
        else:
            event = {
                "event": "ready",
                "kafka": address_text(host, port),
                "data_dir": str(data_dir),
                "pid": os.getpid(),
            }
            print(json.dumps(event, separators=(",", ":")), flush=True)

    def stopping() -> None:
        output.note("Stopping cleanly; a second Ctrl-C ends it at once.")

    server.run(settings, ready, stopping)
    output.note("Stopped.")


def _check_data_dir(data_dir: Path) -> None:
    """Say of a path that can't be a data folder what is wrong with it. Makes nothing.

    Raises:
        SettingsError: it is no folder and none can be made there, or it can't be written.
    """
    place = data_dir.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        reason = f"{place} is not a folder"
    elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        reason = f"{place} can't be written"
    else:
        return
    raise SettingsError(
        f"{data_dir} can't be the data folder: {reason}",
        hint="Name one that can be written: --data-dir DIR.",
    )


def address_text(host: str, port: int) -> str:
    """``host:port`` as clients take it; a wildcard address becomes one that can be reached."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _greeting(loaded: LoadedSettings, host: str, port: int, *, hints: bool) -> str:
    from tidemill import __version__

    address = address_text(host, port)
    shown = f"localhost:{port}" if address.startswith("127.0.0.1:") else address

    def bold(text: str) -> str:
        return output.style(text, "1", sys.stdout)

    lines = [
        f"{bold('tidemill ' + __version__)} is running",
        "",
        f"  kafka     {bold(shown)}   (bootstrap.servers)",
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
