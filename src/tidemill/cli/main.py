"""The ``tidemill`` command: the tree of its subcommands, and the handling of errors.

The modules of this package are imported before each command runs. So they import nothing heavy at
their top: a client library, the broker or rich is imported in the function that uses it.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidemill import __version__, extras
from tidemill.cli import output
from tidemill.cli.acl.commands import app as acl_app
from tidemill.cli.alert.commands import app as alert_app
from tidemill.cli.backup.commands import backup, restore
from tidemill.cli.bridge.commands import app as bridge_app
from tidemill.cli.demo.commands import demo
from tidemill.cli.events import app as events_app
from tidemill.cli.exchange.commands import app as exchange_app
from tidemill.cli.gateway.commands import gateway
from tidemill.cli.group.commands import app as group_app
from tidemill.cli.options import Json
from tidemill.cli.permission.commands import app as permission_app
from tidemill.cli.pipeline.commands import app as pipeline_app
from tidemill.cli.queue.commands import app as queue_app
from tidemill.cli.quota.commands import app as quota_app
from tidemill.cli.server.config import app as config_app
from tidemill.cli.server.doctor import doctor
from tidemill.cli.server.serve import dev, serve
from tidemill.cli.source.commands import app as source_app
from tidemill.cli.sql.commands import sql
from tidemill.cli.topic.commands import app as topic_app
from tidemill.cli.transaction.commands import app as transaction_app
from tidemill.cli.user.commands import app as user_app
from tidemill.cli.view.commands import app as view_app
from tidemill.cli.webhook.commands import app as webhook_app
from tidemill.cli.worker.commands import app as worker_app
from tidemill.errors import TidemillError, lower_first


class CommandLine(TyperGroup):
    """The root command. It prints errors as ``error:`` and ``hint:`` lines, and sets the code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            _check_text(arguments)
            code = super().main(
                arguments, prog_name or "tidemill", complete_var, standalone_mode=False, **extra
            )
        except BaseException as failure:
            if _debug(arguments):
                traceback.print_exc()
            code = _report(failure, arguments)
        sys.exit(code if isinstance(code, int) else output.OK)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader (``| head``) is gone, so a flush at exit must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return output.OK
        return result


def _check_text(arguments: Sequence[str]) -> None:
    """Check that arguments and settings are text: no client library takes anything else.

    Python gives bytes that are not UTF-8 as single surrogates (PEP 383).
    """
    given = [(f"argument {number}", text) for number, text in enumerate(arguments, 1)]
    given += [(name, text) for name, text in os.environ.items() if name.startswith("TIDEMILL_")]
    for name, text in given:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = ascii(os.fsencode(text))[2:-1]
            raise output.UsageError(
                f"{name} is not UTF-8: {shown}", hint="Names and settings are UTF-8 text."
            ) from error


def _debug(arguments: Sequence[str]) -> bool:
    return "--debug" in arguments[:1] or bool(os.environ.get("TIDEMILL_DEBUG"))


def _report(failure: BaseException, arguments: Sequence[str]) -> int:
    """Print an error, and return the exit code."""
    if isinstance(failure, SystemExit):
        return failure.code if isinstance(failure.code, int) else output.FAILURE
    if isinstance(failure, TidemillError):
        output.error(str(failure), failure.hint)
        return output.exit_code(failure)
    if isinstance(failure, KeyboardInterrupt | EOFError | typer.Abort):
        return 130
    if type(failure).__name__ == "NoArgsIsHelpError":
        print(failure, file=sys.stderr)
        return output.USAGE
    if hasattr(failure, "format_message"):  # a click usage error
        words = [word for word in arguments[:2] if not word.startswith("-")]
        context = getattr(failure, "ctx", None)
        path = context.command_path if context else " ".join(["tidemill", *words])
        said = failure.format_message().replace(": Value error, ", ": ")
        hint = f"See: {path} --help"
        if getattr(failure, "option_name", None) == "--debug":
            rest = shlex.join(word for word in arguments if word != "--debug")
            hint = f"Put it first: tidemill --debug {rest}"
        output.error(lower_first(said).rstrip("."), hint)
        return output.USAGE
    if isinstance(failure, OSError):
        known = failure.filename is not None and failure.strerror
        output.error(f"{failure.filename}: {failure.strerror}" if known else str(failure))
        return output.FAILURE
    if isinstance(failure, ImportError) and (extra := extras.extra_of(failure.name)):
        said, hint = extras.problem_of(extra) or (str(failure), "")
        output.error(said, hint)
        return output.FAILURE
    output.error(
        f"unexpected {type(failure).__name__}: {failure}",
        "This is a bug in tidemill. Run it again with 'tidemill --debug ...' and report it.",
    )
    return output.FAILURE


app = typer.Typer(
    name="tidemill",
    cls=CommandLine,
    help="Event streaming for Python: durable logs behind the Kafka protocol.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"tidemill {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the stack trace of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """Event streaming for Python: durable logs behind the Kafka protocol."""


app.command()(dev)
app.command()(serve)
app.add_typer(topic_app, name="topic", short_help="Manage topics; produce and consume records.")
app.add_typer(group_app, name="group", short_help="Manage consumer groups: lag, replay, delete.")
app.add_typer(
    transaction_app,
    name="transaction",
    short_help="Manage transactions; find what holds readers back.",
)
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(source_app, name="source", short_help="Capture the changes of databases.")
app.add_typer(webhook_app, name="webhook", short_help="Deliver topics to HTTP endpoints.")
app.add_typer(alert_app, name="alert", short_help="List, acknowledge and silence alerts.")
app.add_typer(bridge_app, name="bridge", short_help="Bring StatsD and the like into topics.")
app.add_typer(view_app, name="view", short_help="Keep results of SQL current.")
app.add_typer(queue_app, name="queue", short_help="Manage queues; publish and consume.")
app.add_typer(exchange_app, name="exchange", short_help="Manage exchanges, which fill queues.")
app.add_typer(events_app, name="events", short_help="Read and write event stores; publish them.")
app.command(short_help="Serve topics over HTTP.")(gateway)
app.command(short_help="Query topics with SQL.")(sql)
app.add_typer(worker_app, name="worker", short_help="List, restart and watch worker processes.")
app.add_typer(user_app, name="user", short_help="Manage users and their passwords.")
app.add_typer(acl_app, name="acl", short_help="Manage rules of access; explain a decision.")
app.add_typer(permission_app, name="permission", short_help="Manage what AMQP users may do.")
app.add_typer(quota_app, name="quota", short_help="Manage quotas of users and clients.")
app.add_typer(config_app, name="config", short_help="Show the broker's settings.")
app.command(short_help="Run a demo pipeline on flight data, and check its results.")(demo)
app.command(short_help="Copy the data folder of a broker, also while it runs.")(backup)
app.command(short_help="Make a data folder of a backup.")(restore)
app.command(short_help="Check this machine, the data folder and the port.")(doctor)


@app.command()
def version(
    as_json: Json = False,
) -> None:
    """Show the version."""
    if as_json:
        output.emit_json({"tidemill": __version__, "python": sys.version.split()[0]})
    else:
        print(f"tidemill {__version__}")


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that the caller has closed (``<&-``).

    Python leaves such a stream out (None). And the next file or socket would get its descriptor,
    so that whatever writes to the standard stream would write there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main() -> None:
    """Run the command that ``sys.argv`` names."""
    _open_standard_streams()
    app()
