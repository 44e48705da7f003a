"""``tidemill gateway``: runs the gateway in this process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, Config, Set, pairs


def gateway(
    brokers: Brokers = LOCAL,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="N", help="TCP port; 0 picks a free one.")
    ] = None,
    config: Config = None,
    settings: Set = None,
) -> None:
    """Serve topics over HTTP, of any Kafka-compatible broker, until Ctrl-C or SIGTERM.

    'tidemill dev' and 'tidemill serve' start it by themselves. The settings of [gateway] in
    tidemill.toml apply; --set changes one of them. Its documentation is at /docs.
    """
    from tidemill import telemetry
    from tidemill.cli.server.settings_file import load
    from tidemill.gateway.console.settings import ConsoleSettings
    from tidemill.gateway.hooks.settings import DeclaredHooks, HookEntry, HooksSection
    from tidemill.gateway.run import run
    from tidemill.gateway.server import Address
    from tidemill.gateway.settings import GatewaySettings

    flags: dict[str, tuple[str, object]] = {
        key: ("--set", value) for key, value in pairs(settings, "--set").items()
    }
    given = {"gateway.host": ("--host", host), "gateway.port": ("--port", port)}
    flags.update({key: each for key, each in given.items() if each[1] is not None})
    loaded = load(config, flags=flags).settings
    hooks = DeclaredHooks(loaded.section(HooksSection), loaded.entries(HookEntry))
    cluster = Cluster.at(brokers)
    telemetry.configure("info", "auto", color=output.colored(sys.stderr))

    def ready(addresses: Mapping[str, Address]) -> None:
        from tidemill.protocols.contract import address_text

        urls = {
            name: f"{at.scheme}://{address_text(at.host, at.port)}"
            for name, at in addresses.items()
        }
        if sys.stdout.isatty():
            with contextlib.suppress(OSError):  # the terminal may be closed by now
                for name, url in urls.items():
                    more = f" Console: {url}/ Documentation: {url}/docs" if name == "topics" else ""
                    print(f"The gateway serves {name} at {url}.{more}", flush=True)
            return
        event = {"event": "ready", **urls, "pid": os.getpid()}
        print(json.dumps(event, separators=(",", ":")), flush=True)

    console = loaded.section(ConsoleSettings)
    run(cluster.kafka, loaded.section(GatewaySettings), hooks, console, ready)
    output.note("Stopped.")
