"""``tidemill queue publish``, ``consume`` and ``move``: the messages of queues."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import DryRun, Json, pair_list
from tidemill.cli.queue.options import URL_DEFAULT, QueueName, Url, connect
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.amqp_client.connection import AmqpClient, Message

PREFETCH = 100
LOOK_SECONDS = 0.5
"""How often a command that waits for messages looks whether it was interrupted."""


def publish(
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="Name of the queue; or give --exchange."),
    ] = None,
    exchange: Annotated[
        str | None,
        typer.Option("--exchange", metavar="EXCHANGE", help="Publish to an exchange instead."),
    ] = None,
    key: Annotated[
        str, typer.Option("--key", "-k", metavar="KEY", help="Routing key for the exchange.")
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="KEY=VALUE", help="Header of every message."),
    ] = None,
    url: Url = URL_DEFAULT,
) -> None:
    """Publish a message for each line of stdin, and wait until all are on disk.

    A line that no queue takes is an error, and the exit code is 1.
    """
    from tidemill.amqp_client.connection import with_headers

    if (queue is None) == (exchange is None):
        raise output.UsageError("give a queue or --exchange, and not both")
    if queue is not None and key:
        raise output.UsageError("--key can't be used with a queue, only with --exchange")
    data = with_headers(dict(pair_list(header, "--header")))
    if sys.stdin.isatty():
        output.note("Enter one message per line. Ctrl-D ends.")
    count = unrouted = 0
    with connect(url) as client:
        if queue is not None:
            client.call("queue.declare", queue=queue, passive=True)
        client.call("confirm.select")
        for number, line in enumerate(sys.stdin.buffer, 1):
            body = line.removesuffix(b"\n").removesuffix(b"\r")
            returned = client.publish(exchange or "", queue or key, body, data=data)
            if returned is None:
                count += 1
            else:
                unrouted += 1
                output.error(f"line {number}: no queue takes it ({returned.returned})")
    output.note(f"{output.plural(count, 'message')} published")
    if unrouted:
        raise TidemillError(
            f"{output.plural(unrouted, 'message')} had no queue",
            hint="Bind a queue to the exchange: tidemill queue bind QUEUE EXCHANGE --key KEY",
        )


def consume(
    queue: QueueName,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N messages.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Stop when no message is ready.")
    ] = False,
    peek: Annotated[
        bool, typer.Option("--peek", help="Return the messages to the queue at the end.")
    ] = False,
    as_json: Json = False,
    url: Url = URL_DEFAULT,
) -> None:
    """Print messages and acknowledge each when it is printed, until Ctrl-C or --count."""
    from tidemill.cli.queue.view import message_dict, write_body

    with connect(url) as client, _interrupts() as stopped:
        tags: list[int] = []
        printed = 0
        try:
            for message in _messages(client, queue, count, until_empty, stopped, peek=peek):
                if as_json:
                    output.emit_json(message_dict(message))
                else:
                    write_body(message.body)
                tags.append(message.delivery_tag)
                printed += 1
                # An acknowledgement makes place for one more message: none is taken that the
                # command does not print.
                if not peek and (count is None or printed + PREFETCH <= count):
                    client.settle(tags.pop())
        finally:
            if tags and not (until_empty or peek):
                client.stop_consuming()
            for tag in tags:
                client.settle(tag, requeue=True if peek else None)


def _messages(
    client: AmqpClient,
    queue: str,
    count: int | None,
    until_empty: bool,
    stopped: list[bool],
    *,
    peek: bool,
) -> Iterator[Message]:
    found = 0
    if until_empty or peek:
        # What is ready now: a returned message must not be printed twice.
        ready = client.call("queue.declare", queue=queue, passive=True).number("message_count")
        count = min(ready, count if count is not None else ready)
        while found < count and not stopped:
            message = client.get(queue)
            if message is None:
                return
            yield message
            found += 1
        return
    client.consume(queue, prefetch=PREFETCH if count is None else min(count, PREFETCH))
    while not stopped and (count is None or found < count):
        message = client.next_message(LOOK_SECONDS)
        if message is not None:
            yield message
            found += 1


@contextmanager
def _interrupts() -> Iterator[list[bool]]:
    """Yield a list that is not empty after Ctrl-C or SIGTERM."""
    stopped: list[bool] = []
    before = {
        number: signal.signal(number, lambda *_: stopped.append(True))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def move(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Queue that has the messages.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="QUEUE",
            help="Queue that gets them. Default: dead letters go back to where they came from.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="At most N messages.")
    ] = None,
    dry_run: DryRun = False,
    url: Url = URL_DEFAULT,
) -> None:
    """Move messages: each is on disk in its new queue before it leaves the old one.

    Without --to, a dead letter goes back to the queue in which it died last; a message that never
    died stays. A crash in between can leave a message in both queues, and never in none.
    """
    from tidemill.amqp_client.moving import move as move_messages

    with connect(url) as client:
        moved = move_messages(client, source, to, count, dry_run=dry_run)
    verb = "would move" if dry_run else "moved"
    for target, number in sorted(moved.targets.items()):
        print(f"{verb} {output.plural(number, 'message')} from {source} to {target}")
    if moved.stayed:
        what = output.plural(moved.stayed, "message")
        output.note(f"{what} stayed, without a queue to go back to. Use --to.")
    if not moved.targets and not moved.stayed:
        print(f"{source} has no message to move")
