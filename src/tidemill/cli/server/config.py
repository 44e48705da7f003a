"""``tidemill config``: shows the settings that a broker would use, and their origins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.cli import output
from tidemill.cli.options import Config, DataDir, Host, Json, Port, Set, command_group, pairs
from tidemill.cli.output import UsageError

if TYPE_CHECKING:
    from tidemill.cli.server.settings_file import LoadedSettings


def load_settings(
    config: Path | None,
    data_dir: Path | None = None,
    port: int | None = None,
    host: str | None = None,
    settings: list[str] | None = None,
    *,
    insecure: bool = False,
) -> LoadedSettings:
    """Read the settings from flags, environment, file and defaults.

    Raises:
        UsageError: a ``--set`` is not KEY=VALUE, or a setting has two flags that differ.
        SettingsError: see ``settings_file.load``.
    """
    from tidemill.cli.server.settings_file import load
    from tidemill.protocols.table import protocols

    flags: dict[str, tuple[str, object]] = {
        key: ("--set", value) for key, value in pairs(settings, "--set").items()
    }
    own_flags: dict[str, tuple[str, object]] = {
        "data_dir": ("--data-dir", data_dir),
        "host": ("--host", host),
        "insecure": ("--insecure", insecure or None),
    }
    for protocol in protocols():
        if protocol.port_flag:
            own_flags[f"{protocol.name}.port"] = (protocol.port_flag, port)
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


app = command_group("The broker's settings.")


@app.callback()
def config() -> None:
    """The broker's settings."""


@app.command()
def show(
    config: Config = None,
    data_dir: DataDir = None,
    port: Port = None,
    host: Host = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Show the value of each setting and where it comes from.

    Flags override the environment, the environment overrides the file, and the file overrides the
    defaults.
    """
    loaded = load_settings(config, data_dir, port, host, settings)
    if loaded.ignored:
        output.note(f"Ignored, because they describe a service: {', '.join(loaded.ignored)}")
    if as_json:
        output.emit_json(
            {key: {"value": value, "origin": origin} for key, value, origin in loaded.entries()}
        )
    else:
        output.emit_table(
            ["KEY", "VALUE", "ORIGIN"],
            [
                [key, "-" if value in (None, {}) else value, origin]
                for key, value, origin in loaded.entries()
            ],
        )
