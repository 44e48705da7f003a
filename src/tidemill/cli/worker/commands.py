"""``tidemill worker``: lists and restarts the workers of a broker, and shows what they write."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.options import Config, DataDir, Json, command_group

if TYPE_CHECKING:
    from tidemill.workers.control import SupervisorClient

app = command_group(
    "List and restart worker processes of a broker on this machine; show their output."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the worker.")]


@app.command("list", short_help="List the workers with their state.")
def list_workers(config: Config = None, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the workers that the broker supervises: waiting, running, backing off or stopped.

    A worker waits if it has nothing to do. It is backing off after it ended, until it is started
    again; REASON is the last error that it wrote.
    """
    found = [_as_dict(each) for each in _supervisor(config, data_dir).list()]
    columns: output.Columns = {
        **output.titled("name", "state", "pid", "restarts"),
        "FOR": lambda each: output.duration_text(each["for_ms"]),
        "LAST EXIT": lambda each: _exit_text(each["last_exit"]),
        "REASON": lambda each: each["reason"] or None,
    }
    output.emit_columns(columns, found, as_json=as_json)


@app.command(short_help="Stop a worker and start it again.")
def restart(
    name: Name, config: Config = None, data_dir: DataDir = None, as_json: Json = False
) -> None:
    """Stop a worker and start it again, without the pause after a failure.

    The worker of the sources reads their entries in the settings file again.
    """
    status = _as_dict(_supervisor(config, data_dir).restart(name))
    if as_json:
        output.emit_json(status)
    else:
        print(f"restarted worker {name}")


@app.command(short_help="Show what a worker has written.")
def logs(
    name: Name,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines", "-n", metavar="N", min=0, help="Only the last N lines; default: all kept."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines too, until Ctrl-C.")
    ] = False,
    config: Config = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what a worker has written since the start of the broker, up to its last megabyte."""
    if as_json and follow:
        raise output.UsageError("--json and --follow exclude each other")
    found = _supervisor(config, data_dir).logs(name, lines, follow=follow)
    if as_json:
        texts = [line.decode(errors="replace").removesuffix("\n") for line in found]
        output.emit_json({"name": name, "lines": texts})
        return
    if follow:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for line in found:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def _supervisor(config: Config, data_dir: DataDir) -> SupervisorClient:
    from tidemill.cli.server.config import load_settings
    from tidemill.workers.control import SupervisorClient

    return SupervisorClient(load_settings(config, data_dir).settings.data_dir)


def _as_dict(status: Mapping[str, Any]) -> dict[str, Any]:
    for_ms = max(int(1000 * (time.time() - status["since"])), 0)
    return {**status, "since": int(1000 * status["since"]), "for_ms": for_ms}


def _exit_text(code: int | None) -> str | None:
    """Return an exit code for people: a number, or the name of the signal that ended it."""
    if code is None or code >= 0:
        return None if code is None else str(code)
    return signal.Signals(-code).name if -code in set(signal.Signals) else str(code)
