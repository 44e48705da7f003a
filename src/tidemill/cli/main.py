"""The ``tidemill`` command: the tree of its subcommands, and the handling of errors.

A command's module is imported when it is used (``tree``), and before its help is shown. So it
imports nothing heavy at its top: a client library, the broker or rich is imported in the function
that uses it.
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
from tidemill.cli.options import Json
from tidemill.cli.tree import Commands
from tidemill.errors import TidemillError, lower_first


class CommandLine(TyperGroup):
    """The root command. It prints errors as ``error:`` and ``hint:`` lines, and sets the code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()

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
            output.drop_stdout()
            return output.OK
        except KeyboardInterrupt:
            output.flush_in_time()
            raise
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


def version(as_json: Json = False) -> None:
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
