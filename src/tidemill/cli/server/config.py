"""``tidemill config``: shows the settings that a broker would use, and their origins."""

from __future__ import annotations

import typer

from tidemill.cli import output
from tidemill.cli.options import Config, DataDir, Host, Json, KafkaPort, Set
from tidemill.cli.server.serve import load_settings

app = typer.Typer(help="The broker's settings.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def config() -> None:
    """The broker's settings."""


@app.command()
def show(
    config: Config = None,
    data_dir: DataDir = None,
    kafka_port: KafkaPort = None,
    host: Host = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Show the value of each setting and where it comes from.

    Flags override the environment, the environment overrides the file, and the file overrides the
    defaults.
    """
    loaded = load_settings(config, data_dir, kafka_port, host, settings)
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
