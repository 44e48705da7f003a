"""Options and arguments that several commands share, as annotated types.

This module must not know a command or a client library. It is imported before each command runs.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import CommandFunctionType

from tidemill.cli.output import UsageError

BOOTSTRAP_DEFAULT = "localhost:9092"


@dataclass(frozen=True, slots=True)
class Brokers:
    """The flags ``-b`` and ``-X``: where a command finds its brokers.

    Attributes:
        servers: addresses, with commas.
        properties: librdkafka properties, as KEY=VALUE.
    """

    servers: str = BOOTSTRAP_DEFAULT
    properties: Sequence[str] = ()


LOCAL = Brokers()
CLIENT_CONFIG_VARIABLE = "TIDEMILL_CLIENT_CONFIG"


def _with_client_config(given: list[str] | None) -> list[str]:
    """Return properties with those of the file that the environment names, unless given twice.

    Raises:
        UsageError: the file can't be read, or a line is not KEY=VALUE.
    """
    given = list(given or ())
    name = os.environ.get(CLIENT_CONFIG_VARIABLE)
    if not name:
        return given
    keys = {each.partition("=")[0] for each in given}
    try:
        lines = [line.strip() for line in Path(name).read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"can't read {name}, which {CLIENT_CONFIG_VARIABLE} names: {error}"
        ) from error
    found = [line for line in lines if line and not line.startswith("#")]
    for line in found:
        if "=" not in line:  # not the line itself: it can have a password
            raise UsageError(f"{name}: expected KEY=VALUE in each line")
    return [line for line in found if line.partition("=")[0] not in keys] + given


_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD
_SERVERS = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT",
        envvar="TIDEMILL_BOOTSTRAP_SERVERS",
        help="Address of a broker, or several with commas.",
    ),
]
_PROPERTIES = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="KEY=VALUE",
        help="A librdkafka property, e.g. security.protocol=SSL.",
        callback=_with_client_config,
    ),
]
_FLAGS = (
    inspect.Parameter("servers", _PLACE, default=BOOTSTRAP_DEFAULT, annotation=_SERVERS),
    inspect.Parameter("properties", _PLACE, default=None, annotation=_PROPERTIES),
)


def _with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the flags of ``Brokers`` in the place of its parameter ``brokers``."""
    signature = inspect.signature(command, eval_str=True)
    if "brokers" not in signature.parameters:
        return command

    @functools.wraps(command)
    def called(*, servers: str, properties: list[str], **given: Any) -> Any:
        return command(**given, brokers=Brokers(servers, properties))

    places = [
        (each,) if each.name != "brokers" else _FLAGS for each in signature.parameters.values()
    ]
    found = [flag for place in places for flag in place]
    called.__dict__["__signature__"] = signature.replace(parameters=found)  # Typer reads it
    return called


class CommandGroup(typer.Typer):
    """Commands. The flags ``-b`` and ``-X`` are those of each with a parameter ``brokers``."""

    def command(
        self, name: str | None = None, **attributes: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        register = super().command(name, **attributes)

        def add(command: CommandFunctionType) -> CommandFunctionType:
            register(_with_flags(command))
            return command

        return add


def command_group(text: str) -> CommandGroup:
    """Return a group of commands, with ``text`` as its help. Without a command it shows that."""
    return CommandGroup(help=text, no_args_is_help=True, rich_markup_mode=None)


Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")
]

# --- topics and partitions -----------------------------------------------------------------------

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of the topics.")]
OnlyPartition = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", min=0, help="Only this partition."),
]

# --- the broker's settings -----------------------------------------------------------------------


def _folder(text: str) -> Path:
    if not text:  # --data-dir "$UNSET" would use the working folder
        raise typer.BadParameter("it is empty; expected a folder")
    return Path(text)


DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="The data folder.", show_default=False, parser=_folder
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--kafka-port", metavar="N", help="Port of the Kafka protocol; 0 picks a free one."
    ),
]
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Serve other machines, too, without logins: not by accident."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file; default: tidemill.toml in this folder, if it exists.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting that 'tidemill config show' lists."
    ),
]


def pairs(values: Iterable[str] | None, flag: str) -> dict[str, str]:
    """Parse ``KEY=VALUE`` flags.

    Raises:
        UsageError: a value has no ``=`` or no key, or a key has two values.
    """
    result: dict[str, str] = {}
    for key, value in pair_list(values, flag):
        if result.setdefault(key, value) != value:
            raise UsageError(
                f"{key} is given twice: {flag} {key}={result[key]} and {flag} {key}={value}",
                hint="Leave one of them out.",
            )
    return result


def pair_list(values: Iterable[str] | None, flag: str) -> list[tuple[str, str]]:
    """Parse ``KEY=VALUE`` flags of which a key can have several, in their order.

    Raises:
        UsageError: a value has no ``=`` or no key.
    """
    result: list[tuple[str, str]] = []
    for text in values or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{flag} {text}: expected KEY=VALUE")
        result.append((key, value))
    return result


def is_given(context: typer.Context, parameter: str) -> bool:
    """Return whether the command line or the environment sets a parameter."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
