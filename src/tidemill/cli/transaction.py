"""``tidemill transaction``: list, describe and abort transactions; find what holds readers back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    Cluster,
    Json,
    Property,
    TopicPartitionKey,
    is_internal,
)
from tidemill.cli.transaction_abort import abort, partition_dicts

if TYPE_CHECKING:
    from tidemill.cli.transactions import Description

app = typer.Typer(
    help="Transactions: list, describe, abort; find what holds readers back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class State(StrEnum):
    """Of a transactional id, as users write it."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare-commit"
    PREPARE_ABORT = "prepare-abort"
    COMPLETE_COMMIT = "complete-commit"
    COMPLETE_ABORT = "complete-abort"
    PREPARE_EPOCH_FENCE = "prepare-epoch-fence"
    DEAD = "dead"


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str, flag: str) -> int:
    """``90s``, ``1h 30m`` or ``500ms`` as milliseconds.

    Raises:
        UsageError: it is no duration; ``flag`` is named.
    """
    word = text.strip().lower()
    if not re.fullmatch(r"(\d{1,9}\s*(ms|s|m|h|d)\s*)+", word):
        raise output.UsageError(
            f"{flag} {text}: expected a duration", hint="For example 500ms, 30s, 5m, 1h30m or 2d."
        )
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)\s*(ms|s|m|h|d)", word))


@app.command("list", short_help="List transactional ids, with their states.")
def list_(
    state: Annotated[
        list[State] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only those in this state: {', '.join([*State][:-1])} or {[*State][-1]}.",
        ),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", min=0, help="Only that of this producer."),
    ] = None,
    open_longer_than: Annotated[
        str | None,
        typer.Option(
            "--open-longer-than",
            metavar="DURATION",
            help="Only transactions that have been open for longer, e.g. 30s, 5m, 1h30m.",
        ),
    ] = None,
    id_pattern: Annotated[
        str | None,
        typer.Option(
            "--id-pattern",
            metavar="REGEX",
            help="Only ids that a regular expression matches as a whole (RE2), e.g. 'shop-.*'.",
        ),
    ] = None,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """List transactional ids, with the state of the last transaction of each."""
    longer = None
    if open_longer_than is not None:
        longer = duration_ms(open_longer_than, "--open-longer-than")
    from tidemill.cli.transactions import OPEN_STATES, describe_transactions, list_transactions
    from tidemill.cli.wire import Wire

    with Wire(Cluster.at(servers, properties)) as wire:
        listed = list_transactions(
            wire,
            states=[each.value for each in state or ()],
            producer_ids=producer_id or (),
            open_longer_than_ms=longer,
            id_pattern=id_pattern,
        )
        still_open = [each.transactional_id for each in listed if each.state in OPEN_STATES]
        descriptions = {d.transactional_id: d for d in describe_transactions(wire, still_open)}
    rows: list[dict[str, Any]] = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "coordinator": each.coordinator,
            "open_ms": getattr(descriptions.get(each.transactional_id), "open_ms", None),
        }
        for each in listed
    ]
    if as_json:
        output.emit_json(rows)
    else:
        output.emit_table(
            ["TRANSACTION", "STATE", "PRODUCER", "COORDINATOR", "OPEN"],
            [[*list(row.values())[:4], output.duration_text(row["open_ms"])] for row in rows],
        )
    if rows:
        return
    if id_pattern:
        output.note("None matches. --id-pattern is matched with an id as a whole, e.g. 'shop-.*'.")
    elif state or producer_id or open_longer_than:
        output.note("None matches.")
    else:
        output.note("There are none. One begins when a producer with a transactional.id connects.")


@app.command(short_help="Show a transactional id and its open transaction.")
def describe(
    transactional_id: Annotated[
        str, typer.Argument(metavar="ID", help="Transactional id of the producer.")
    ],
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Show a transactional id: its producer, and the transaction that is open."""
    from tidemill.cli.transactions import describe_transaction
    from tidemill.cli.wire import Wire

    with Wire(Cluster.at(servers, properties)) as wire:
        found = describe_transaction(wire, transactional_id)
    if as_json:
        output.emit_json(_description_dict(found))
        return
    output.emit_fields(
        [
            ("transaction", found.transactional_id),
            ("state", found.state),
            ("producer", found.producer_id),
            ("epoch", found.producer_epoch),
            ("coordinator", found.coordinator),
            ("timeout", output.duration_text(found.timeout_ms)),
            ("started", _time_text(found.started_ms)),
            ("open", output.duration_text(found.open_ms)),
            ("partitions", len(found.partitions)),
        ]
    )
    if found.partitions:
        print()
        output.emit_table(["TOPIC", "PARTITION"], found.partitions)


def _description_dict(found: Description) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "started_ms": found.started_ms,
        "open_ms": found.open_ms,
        "partitions": partition_dicts(found.partitions),
    }


def _time_text(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@app.command()
def find(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Topics to look at; default: all, not internal ones."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", min=0, help="Only this partition of the topic."),
    ] = None,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Find the open transactions that hold readers of topics back.

    Readers with read_committed get no further than STABLE, the first offset of the oldest open
    transaction. One that no coordinator knows is hanging: it ends only by "transaction abort".
    """
    if partition and len(topics or ()) != 1:
        raise output.UsageError("--partition needs one TOPIC")
    from tidemill.cli.lag import stable_offsets
    from tidemill.cli.transactions import open_writes
    from tidemill.cli.wire import Wire

    cluster = Cluster.at(servers, properties)
    with Wire(cluster) as wire:
        found = open_writes(wire, _partitions(cluster, topics, partition))
    keys = sorted({each.key for each in found})
    stable = stable_offsets(cluster, keys)
    held = cluster.offsets(keys)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "stable_offset": stable[each.key],
            "end_offset": held[each.key].end,
            "transactional_id": each.owner.transactional_id if each.owner else None,
            "state": each.owner.state if each.owner else "hanging",
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "first_offset": each.first_offset,
            "last_write_ms": each.last_write_ms,
            "idle_ms": each.idle_ms,
        }
        for each in found
    ]
    if as_json:
        output.emit_json(rows)
    else:
        _emit_found(rows)
    if not rows:
        output.note("No transaction is open: read_committed readers can read to the end.")


def _emit_found(rows: Sequence[dict[str, Any]]) -> None:
    headers = ["TOPIC", "PARTITION", "STABLE", "END", "TRANSACTION", "STATE", "PRODUCER", "FIRST"]
    names = ("topic", "partition", "stable_offset", "end_offset", "transactional_id", "state")
    output.emit_table(
        [*headers, "IDLE"],
        [
            [
                *(row[name] for name in (*names, "producer_id", "first_offset")),
                output.duration_text(row["idle_ms"]),
            ]
            for row in rows
        ],
    )
    hanging = next((row for row in rows if row["state"] == "hanging"), None)
    if hanging:
        output.note(
            f"End a hanging one: tidemill transaction abort --topic {hanging['topic']} "
            f"--partition {hanging['partition']} --producer-id {hanging['producer_id']}"
        )


def _partitions(
    cluster: Cluster, topics: Sequence[str] | None, partitions: Sequence[int] | None
) -> list[TopicPartitionKey]:
    if topics:
        return [key for topic in topics for key in cluster.partitions(topic, partitions)]
    there = cluster.topics().items()
    return [(name, p) for name, count in there if not is_internal(name) for p in range(count)]


app.command()(abort)
