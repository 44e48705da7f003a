"""Options and arguments of the commands about queues and exchanges."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli.options import pairs
from tidemill.cli.output import UsageError

if TYPE_CHECKING:
    from tidemill.amqp_client.connection import AmqpClient

URL_DEFAULT = "amqp://guest:guest@localhost:5672/"
Url = Annotated[
    str,
    typer.Option(
        "--amqp-url",
        "-a",
        metavar="URL",
        envvar="TIDEMILL_AMQP_URL",
        help="Address of the broker, amqp://USER:PASSWORD@HOST:PORT/; amqps:// for TLS.",
    ),
]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
QueueNames = Annotated[list[str], typer.Argument(metavar="QUEUE", help="Names of the queues.")]
ExchangeName = Annotated[str, typer.Argument(metavar="EXCHANGE", help="Name of the exchange.")]
RoutingKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        "-k",
        metavar="KEY",
        help="Routing key; topic exchanges know * (one word) and # (any number of words).",
    ),
]
Argument = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An argument of AMQP, such as x-max-length=1000 or x-queue-type=quorum.",
    ),
]


def connect(url: str) -> AmqpClient:
    """Return a client of the broker. The module of the client is imported for it only."""
    from tidemill.amqp_client.connection import AmqpClient

    return AmqpClient(url)


def arguments(
    values: Iterable[str] | None, known: Collection[str] | None = None
) -> dict[str, object]:
    """Return the arguments of ``--set``: numbers, true and false, and texts.

    Args:
        known: the names that mean something. The broker accepts others, so a misspelled one is
            refused here. None: any name.
    """
    given = pairs(values, "--set")
    if known is not None:
        for key in given:
            _check_known(key, known)
    return {key: _value(text) for key, text in given.items()}


def _check_known(key: str, known: Collection[str]) -> None:
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(sorted(known))}."
        raise UsageError(f"--set {key}: unknown argument", hint=hint)


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text
