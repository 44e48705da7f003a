"""``tidemill webhook``: creates, lists, describes, tests and orders webhooks that go out."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.boards import (
    Boards,
    Declared,
    DefinitionFile,
    Every,
    Names,
    Replace,
)
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes, command_group
from tidemill.cli.stopping import until_signal
from tidemill.cli.webhook.view import COLUMNS, emit_attempts, fields_of
from tidemill.connect.webhooks.topics import (
    WEBHOOKS,
    attempts_topic,
    dead_letters_topic,
    group_id,
)
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.webhooks.definition import Webhook

app = command_group("Deliver topics to HTTP endpoints, as signed webhooks.")
BOARDS = Boards("webhook", WEBHOOKS, ("topic", "url"))

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the webhook.")]
WAIT_S = 30.0
"""How long ``test`` waits for the worker, and ``delete`` for the end of the group."""


@app.command(short_help="Create a webhook from a TOML file.")
def create(
    file: DefinitionFile,
    replace: Replace = False,
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Create a webhook from a TOML file. A running worker delivers it immediately.

    Secrets in the file are references: ${env:NAME} or ${file:PATH}, which the worker resolves. With
    start_at = "end", the default, it delivers what is written to the topic from now on.
    """
    from tidemill.connect.webhooks.definition import Webhook, read_file
    from tidemill.connect.webhooks.errors import DefinitionError
    from tidemill.connect.webhooks.intake import commit_start

    webhook = read_file(file)
    kafka = BOARDS.kafka(brokers)
    others = []
    for stored in BOARDS.read(kafka).definitions.values():
        with suppress(DefinitionError):  # of a version that takes what this one does not
            others.append(Webhook.decode(stored))
    webhook.check_no_circle(others)
    BOARDS.create(
        kafka,
        webhook,
        replace=replace,
        dry_run=dry_run,
        before=lambda: commit_start(kafka, webhook),
    )


@app.command("list", short_help="List the webhooks with their state and lag.")
def list_webhooks(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List the webhooks with their state and lag, as their workers last published them."""
    BOARDS.emit_list(brokers, COLUMNS, as_json=as_json)


@app.command(short_help="Show a webhook: state, lag, what waits, last attempts.")
def describe(
    name: Name,
    attempts: Annotated[
        int, typer.Option("--attempts", metavar="N", min=0, help="Show the last N attempts.")
    ] = 5,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Show a webhook: state, lag, what waits behind keys that fail, and the last attempts."""
    kafka, board = BOARDS.find(name, brokers)
    found = BOARDS.described(board, name)
    last = _last_attempts(kafka, name, attempts) if attempts else []
    if as_json:
        output.emit_json({**found, "last_attempts": last})
        return
    output.emit_fields([*BOARDS.fields(found), *fields_of(found)])
    if last:
        print()
        emit_attempts(last)


@app.command("test", short_help="Send a test event, and show the answer.")
def send_test(name: Name, as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """Send an event of the type webhook.test, and show the answer.

    The worker sends it, since it has the secrets, whatever state the webhook is in. The exit code
    is 1 if the endpoint does not answer with a status from 200 to 299.
    """
    import uuid

    kafka, _ = BOARDS.find(name, brokers)
    number = uuid.uuid4().hex
    BOARDS.order(kafka, name, f"test/{number}")
    deadline = time.monotonic() + WAIT_S
    while (found := _test_result(kafka, name, number)) is None:
        if time.monotonic() > deadline:
            raise TidemillError(
                f"no worker has sent the test within {WAIT_S:g} s",
                hint="Is one running? 'tidemill worker list', or 'tidemill webhook run --all'.",
            )
        time.sleep(0.1)
    if as_json:
        output.emit_json(found)
    else:
        shown = ("status", "error", "duration_ms", "answer")
        output.emit_fields([(key, found.get(key)) for key in shown if found.get(key) is not None])
    if found.get("outcome") != "delivered":
        raise TidemillError(f"webhook {name} does not work")


def _last_attempts(kafka: Kafka, name: str, count: int) -> list[dict[str, Any]]:
    from tidemill.connect.webhooks.history import last_attempts

    return last_attempts(kafka, "tidemill-cli", name, count)


def _test_result(kafka: Kafka, name: str, number: str) -> dict[str, Any] | None:
    found = _last_attempts(kafka, name, 1000)
    return next((each for each in found if each.get("job") == number), None)


@app.command(short_help="Stop delivering for now. Nothing is lost.")
def pause(name: Name, brokers: Brokers = LOCAL) -> None:
    """Stop delivering for now. Nothing is lost as long as the topic keeps its records."""
    BOARDS.pause(name, brokers, paused=True)


@app.command(short_help="Continue a webhook that was paused, disabled or has failed.")
def resume(name: Name, brokers: Brokers = LOCAL) -> None:
    """Continue a webhook that was paused, disabled or has failed, where it stopped."""
    BOARDS.pause(name, brokers, paused=False)


@app.command(short_help="Deliver records again: one, a range, or all that failed.")
def redeliver(
    name: Name,
    failed: Annotated[
        bool, typer.Option("--failed", help="All records that became dead letters.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="N", min=0, help="The record with this offset."),
    ] = None,
    first: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, help="All from this offset on.")
    ] = None,
    to: Annotated[
        int | None,
        typer.Option("--to", metavar="N", min=0, help="With --from: up to before this offset."),
    ] = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Deliver records again, with the ids that they had, so that receivers can tell.

    They are read from the topic, so it must still have them. They come beside new records, in any
    order. A worker carries it out; see 'tidemill webhook describe NAME'.
    """
    import uuid

    from tidemill.connect.webhooks.definition import Webhook

    kinds = [failed, offset is not None, first is not None]
    if sum(kinds) != 1:
        raise output.UsageError("use one of --failed, --offset N and --from N")
    if to is not None and first is None:
        raise output.UsageError("--to is for --from")
    if offset is not None and partition is None:
        raise output.UsageError("--offset needs --partition")
    if failed and partition is not None:
        raise output.UsageError("--partition is for --offset and --from")
    kafka, board = BOARDS.find(name, brokers)
    wanted: dict[str, Any] = {"failed": True}
    if not failed:
        start = offset if first is None else first
        end = to if offset is None else offset + 1
        wanted = {"partition": partition, "from": start, "to": end}
        _check_range(kafka, Webhook.decode(board.definitions[name]).topic, partition, start, end)
    BOARDS.order(kafka, name, f"redeliver/{uuid.uuid4().hex}", **wanted)
    print(f"ordered a redelivery of webhook {name}")


def _check_range(
    kafka: Kafka, topic: str, partition: int | None, start: int | None, end: int | None
) -> None:
    """Check that a topic has a record in a range. Otherwise the redelivery would do nothing."""
    ends = kafka.end_offsets("tidemill-cli", kafka.partitions("tidemill-cli", topic))
    starts = kafka.start_offsets("tidemill-cli", ends)
    there = {
        place[1]: (starts[place], last)
        for place, last in ends.items()
        if partition in (None, place[1])
    }
    for first, last in there.values():
        if max(first, start or 0) < min(last, last if end is None else end):
            return
    has = [f"partition {n} has {first} up to before {last}" for n, (first, last) in there.items()]
    raise output.NotFoundError(
        f"topic {topic} has no such record" if there else f"topic {topic} has no such partition",
        hint=f"Offsets: {'; '.join(has[:5])}." if has else None,
    )


@app.command("rotate-secret", short_help="Sign with a new secret, and with the old one too.")
def rotate_secret(
    name: Name,
    reference: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="REFERENCE", help="The new secret: ${env:NAME} or ${file:PATH}."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="PATH", help="Write a new secret to this file, and use it."),
    ] = None,
    drop_old: Annotated[
        bool,
        typer.Option("--drop-old", help="Stop signing with the old secrets. Needs no new one."),
    ] = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Sign with a new secret, and with the old one too, until receivers know the new one.

    Then run it again with --drop-old. The worker must be able to read the file.
    """
    from tidemill.connect.webhooks.definition import Webhook

    if (reference is None) == (file is None) and not (drop_old and file is None):
        raise output.UsageError("use --to REFERENCE, --file PATH or --drop-old")
    kafka, board = BOARDS.find(name, brokers, to_change=True)
    webhook = Webhook.decode(board.definitions[name])
    if reference is None and file is None and not webhook.secrets:
        raise output.UsageError(f"webhook {name} has no secret: it does not sign")
    if file is not None:
        reference = f"${{file:{_new_secret_file(file)}}}"
    changed: Webhook = (
        webhook.with_secret(webhook.secrets[0], keep=0)
        if reference is None
        else webhook.with_secret(reference, keep=0 if drop_old else 1)
    )
    writer = BOARDS.writer(kafka)
    writer.define(changed)
    writer.flush()
    print(f"webhook {name} signs with {output.plural(len(changed.secrets), 'secret')}")


def _new_secret_file(file: Path) -> Path:
    """Write a new secret to a file that does not exist yet, which only its owner can read."""
    from tidemill.connect.webhooks.signatures import new_secret

    path = file.absolute()
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(new_secret().reveal() + "\n")
    except OSError as error:
        raise output.UsageError(f"can't write {path}: {(error.strerror or '').lower()}") from error
    return path


@app.command(short_help="Delete a webhook, its position and its attempts.")
def delete(
    name: Name,
    letters: Annotated[
        bool, typer.Option("--dead-letters", help="Delete the topic of its dead letters too.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete a webhook, its position and the topic with its attempts.

    The worker stops delivering it. Its consumer group can be deleted a few seconds later.
    """
    topics = [attempts_topic(name), *([dead_letters_topic(name)] if letters else [])]
    question = f"Delete webhook {name} and its position?"
    kafka = BOARDS.delete(name, brokers, question, topics, yes=yes, dry_run=dry_run)
    if kafka is None:
        return
    _delete_group(kafka, name)
    kafka.delete_topics("tidemill-cli", topics)
    print(f"deleted webhook {name}")


def _delete_group(kafka: Kafka, name: str) -> None:
    """Delete the consumer group, as soon as the worker's session in it has ended."""
    from confluent_kafka import KafkaError, KafkaException

    admin = kafka.admin("tidemill-cli")
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            admin.delete_consumer_groups([group_id(name)])[group_id(name)].result(WAIT_S)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if failure.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return
            if failure.code() != KafkaError.NON_EMPTY_GROUP or time.monotonic() > deadline:
                raise kafka.translate(failure, f"delete group {group_id(name)}") from error
            time.sleep(0.5)
        else:
            return


@app.command(short_help="Deliver webhooks in this process.")
def run(
    names: Names = None,
    every: Every = False,
    declared: Declared = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Deliver webhooks in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill webhook run --all --declared
    FILE', with their settings file. A webhook has one worker: a second one takes over, and the
    first stops delivering it.
    """
    from tidemill.connect.webhooks.definition import Webhook
    from tidemill.connect.webhooks.manager import manager

    kafka = BOARDS.begin_run(Webhook, Webhook.decode, names, every, declared, brokers)
    # What waits is many small objects without cycles: collections would only look at them.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    until_signal(manager(kafka, None if every else names).run)
