"""``tidemill exchange``: creates, lists, binds and deletes exchanges."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import Json, Yes, command_group
from tidemill.cli.queue.options import (
    URL_DEFAULT,
    Argument,
    ExchangeName,
    RoutingKeys,
    Url,
    arguments,
    connect,
)

app = command_group("Create, list, bind and delete exchanges, which route messages to queues.")


class ExchangeType(enum.StrEnum):
    """The way an exchange chooses queues."""

    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


@app.command(short_help="Create an exchange.")
def create(
    name: ExchangeName,
    kind: Annotated[
        ExchangeType,
        typer.Option(
            "--type",
            help="direct: equal routing keys; fanout: all queues; topic: patterns of routing keys; "
            "headers: headers of the message.",
        ),
    ] = ExchangeType.DIRECT,
    settings: Argument = None,
    url: Url = URL_DEFAULT,
) -> None:
    """Create a durable exchange. One that exists with the same type is left as it is."""
    from tidemill.state.routing.arguments import EXCHANGE_ARGUMENTS

    wanted = arguments(settings, EXCHANGE_ARGUMENTS)
    with connect(url) as client:
        client.call(
            "exchange.declare",
            exchange=name,
            type=kind.value,
            durable=True,
            arguments=wanted,
        )
    print(f"created {name} ({kind.value})")


@app.command("list", short_help="List the exchanges with their bindings.")
def list_exchanges(as_json: Json = False, url: Url = URL_DEFAULT) -> None:
    """List the exchanges with their bindings. Those of AMQP itself come with a broker."""
    with connect(url) as client:
        found = client.ask({"list": "exchanges"})
        bindings = client.ask({"list": "bindings"})
    by_source: dict[str, list[dict[str, object]]] = {}
    for each in bindings:
        by_source.setdefault(each["source"], []).append(each)
    if as_json:
        output.emit_json([{**each, "bindings": by_source.get(each["name"], [])} for each in found])
        return
    rows: list[list[object]] = []
    for each in found:
        bound = by_source.get(each["name"]) or [{}]
        for number, binding in enumerate(bound):
            first = [each["name"], each["type"]] if number == 0 else ["", ""]
            rows.append([*first, binding.get("routing_key"), binding.get("destination")])
    output.emit_table(["EXCHANGE", "TYPE", "ROUTING KEY", "BOUND TO"], rows)


@app.command(short_help="Bind an exchange to another one.")
def bind(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Exchange that routes.")],
    destination: Annotated[str, typer.Argument(metavar="TO", help="Exchange that gets messages.")],
    keys: RoutingKeys = None,
    settings: Argument = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the binding.")] = False,
    url: Url = URL_DEFAULT,
) -> None:
    """Bind an exchange to another one: it passes on messages with a matching routing key."""
    with connect(url) as client:
        for key in keys or [""]:
            client.call(
                "exchange.unbind" if remove else "exchange.bind",
                source=source,
                destination=destination,
                routing_key=key,
                arguments=arguments(settings),
            )
            with_key = f" with key {key}" if key else ""
            print(f"{'unbound' if remove else 'bound'} {source} to {destination}{with_key}")


@app.command(short_help="Delete an exchange.")
def delete(name: ExchangeName, yes: Yes = False, url: Url = URL_DEFAULT) -> None:
    """Delete an exchange with its bindings. Queues and their messages stay."""
    with connect(url) as client:
        client.call("exchange.declare", exchange=name, passive=True)
        output.confirm(f"Delete exchange {name}?", yes=yes)
        client.call("exchange.delete", exchange=name)
    print(f"deleted {name}")
