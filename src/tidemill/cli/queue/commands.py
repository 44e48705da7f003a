"""``tidemill queue``: creates, lists, describes, binds, purges and deletes queues."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import DryRun, Json, Yes, command_group
from tidemill.cli.queue.messages import consume, move, publish
from tidemill.cli.queue.options import (
    URL_DEFAULT,
    Argument,
    ExchangeName,
    QueueName,
    QueueNames,
    RoutingKeys,
    Url,
    arguments,
    connect,
)
from tidemill.errors import TidemillError

app = command_group("Create, list, describe and bind queues; publish and consume messages.")

Length = Annotated[
    int | None, typer.Option("--max-length", metavar="N", min=0, help="Most messages.")
]


@app.command(short_help="Create a queue.")
def create(
    name: QueueName,
    settings: Argument = None,
    dead_letter_to: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-to",
            metavar="QUEUE",
            help="Queue for rejected and expired messages. It is created if it is missing.",
        ),
    ] = None,
    max_length: Length = None,
    delivery_limit: Annotated[
        int | None,
        typer.Option(
            "--delivery-limit",
            metavar="N",
            min=0,
            help="How often a message can return.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = URL_DEFAULT,
) -> None:
    """Create a durable queue. A queue that exists with the same arguments is left as it is."""
    from tidemill.state.routing.arguments import QUEUE_ARGUMENTS

    wanted = arguments(settings, QUEUE_ARGUMENTS)
    if dead_letter_to is not None:
        wanted |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead_letter_to}
    if max_length is not None:
        wanted["x-max-length"] = max_length
    if delivery_limit is not None:
        wanted["x-delivery-limit"] = delivery_limit
    with connect(url) as client:
        if dead_letter_to is not None:
            client.call("queue.declare", queue=dead_letter_to, durable=True)
        declared = client.call("queue.declare", queue=name, durable=True, arguments=wanted)
        name = declared.text("queue")  # the broker makes a name for an empty one
    if as_json:
        output.emit_json({"queue": name, "arguments": wanted})
    else:
        print(f"created {name}")


@app.command("list", short_help="List the queues.")
def list_queues(as_json: Json = False, url: Url = URL_DEFAULT) -> None:
    """List the queues with their messages and consumers."""
    from tidemill.cli.queue.view import COLUMNS

    with connect(url) as client:
        found = client.ask({"list": "queues"})
    output.emit_columns(COLUMNS, found, as_json=as_json)
    if not found:
        output.note("There is no queue. Create one: tidemill queue create NAME")


@app.command(short_help="Show a queue: messages, bindings, consumers.")
def describe(name: QueueName, as_json: Json = False, url: Url = URL_DEFAULT) -> None:
    """Show a queue: its messages, arguments, bindings and consumers.

    The counters of published, delivered, acknowledged, redelivered and dead-lettered messages begin
    with the start of the broker.
    """
    from tidemill.cli.queue.view import emit_queue

    with connect(url) as client:
        found = [each for each in client.ask({"list": "queues"}) if each["name"] == name]
        if not found:
            raise output.NotFoundError(
                f"there is no queue {name!r}", hint="See: tidemill queue list"
            )
        bindings = [
            each
            for each in client.ask({"list": "bindings"})
            if each["destination"] == name and each["destination_kind"] == "queue"
        ]
    if as_json:
        output.emit_json({**found[0], "bindings": bindings})
    else:
        emit_queue(found[0], bindings)


@app.command(short_help="Bind a queue to an exchange.")
def bind(
    name: QueueName,
    exchange: ExchangeName,
    keys: RoutingKeys = None,
    settings: Argument = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the binding.")] = False,
    url: Url = URL_DEFAULT,
) -> None:
    """Bind a queue to an exchange: messages with a matching routing key come to the queue.

    The arguments of --set are what a headers exchange matches.
    """
    with connect(url) as client:
        for key in keys or [""]:
            client.call(
                "queue.unbind" if remove else "queue.bind",
                queue=name,
                exchange=exchange,
                routing_key=key,
                arguments=arguments(settings),
            )
            with_key = f" with key {key}" if key else ""
            verb = "unbound" if remove else "bound"
            print(f"{verb} {name} {'from' if remove else 'to'} {exchange}{with_key}")


@app.command(short_help="Delete the messages that are ready in a queue.")
def purge(
    name: QueueName, yes: Yes = False, dry_run: DryRun = False, url: Url = URL_DEFAULT
) -> None:
    """Delete the messages that are ready in a queue. Unacknowledged ones stay."""
    with connect(url) as client:
        ready = client.call("queue.declare", queue=name, passive=True).number("message_count")
        if dry_run:
            print(f"would delete {output.plural(ready, 'message')} of {name}")
            return
        output.confirm(f"Delete {output.plural(ready, 'message')} of {name}?", yes=yes)
        count = client.call("queue.purge", queue=name).number("message_count")
    print(f"purged {name} ({output.plural(count, 'message')})")


@app.command(short_help="Delete queues with their messages.")
def delete(
    names: QueueNames, yes: Yes = False, dry_run: DryRun = False, url: Url = URL_DEFAULT
) -> None:
    """Delete queues with all their messages."""
    failures: list[TidemillError] = []
    with connect(url) as client:
        counts = {
            name: client.call("queue.declare", queue=name, passive=True).number("message_count")
            for name in names
        }
        if not dry_run:
            what = ", ".join(f"{n} ({output.plural(c, 'message')})" for n, c in counts.items())
            output.confirm(f"Delete {what}?", yes=yes)
    for name, count in counts.items():
        if dry_run:
            print(f"would delete {name} ({output.plural(count, 'message')})")
            continue
        try:
            with connect(url) as client:  # a refusal closes the channel
                client.call("queue.delete", queue=name)
            print(f"deleted {name} ({output.plural(count, 'message')})")
        except TidemillError as error:
            failures.append(error)
    output.raise_all(failures)


app.command(short_help="Publish messages from stdin.")(publish)
app.command(short_help="Print the messages of a queue.")(consume)
app.command(short_help="Move dead letters back, or messages to another queue.")(move)
