"""``tidemill config``: what the broker would run with, and why."""

from __future__ import annotations

import typer

from tidemill.cli import output
from tidemill.cli.client import Json
from tidemill.cli.serve import Config, DataDir, Host, KafkaPort, Set, load_settings

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
    """Show each setting in force and where it comes from.

    Flags beat the environment, the environment beats the file, the file beats the defaults.
    """
    loaded = load_settings(config, data_dir, kafka_port, host, settings)
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
