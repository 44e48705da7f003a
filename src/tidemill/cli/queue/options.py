"""Options and arguments of the commands about queues and exchanges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from tidemill.cli.options import pairs

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


def arguments(values: Iterable[str] | None) -> dict[str, object]:
    """Return the arguments of ``--set``: numbers, true and false, and texts.

    Raises:
        UsageError: a value has no ``=``, or a key has two values.
    """
    return {key: _value(text) for key, text in pairs(values, "--set").items()}


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text
