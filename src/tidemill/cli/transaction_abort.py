"""``tidemill transaction abort``: end what is open, of an id or hanging in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    Cluster,
    DryRun,
    Json,
    Property,
    TopicPartitionKey,
    Yes,
)
from tidemill.errors import InvalidTxnStateError, TransactionalIdNotFoundError

if TYPE_CHECKING:
    from tidemill.cli.transactions import Description, OpenWrite


def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Transactional id of the producer.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Where a hanging transaction is."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Its partition.")
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option("--producer-id", metavar="N", min=0, help="Its producer (transaction find)."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Abort the open transaction of an ID, and fence its producer.

    What it wrote is never shown to read_committed readers, and its producer gets an error on its
    next call. A hanging transaction, which no ID owns, is named by --topic, --partition and
    --producer-id instead.
    """
    place = (topic, partition, producer_id)
    if transactional_id is not None and place == (None, None, None):
        cluster = Cluster.at(servers, properties)
        _abort_id(cluster, transactional_id, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    if transactional_id is not None or topic is None or partition is None or producer_id is None:
        raise output.UsageError(
            "give either an ID, or --topic, --partition and --producer-id of a hanging transaction",
            hint="See what is open: tidemill transaction list; tidemill transaction find",
        )
    cluster = Cluster.at(servers, properties)
    _abort_hanging(
        cluster, (topic, partition), producer_id, yes=yes, dry_run=dry_run, as_json=as_json
    )


def partition_dicts(keys: Sequence[TopicPartitionKey]) -> list[dict[str, Any]]:
    """Partitions as JSON shows them."""
    return [{"topic": topic, "partition": partition} for topic, partition in keys]


def _abort_id(
    cluster: Cluster, transactional_id: str, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    from tidemill.cli.transactions import describe_transaction, fence
    from tidemill.cli.wire import Wire

    with Wire(cluster) as wire:
        before = describe_transaction(wire, transactional_id)
        _refuse_if_not_ongoing(before)
        what = (
            f"{output.plural(len(before.partitions), 'partition')}, "
            f"open for {output.duration_text(before.open_ms) or '0ms'}"
        )
        if not dry_run:
            output.confirm(f"Abort {transactional_id} ({what}) and fence its producer?", yes=yes)
            _refuse_if_another(before, describe_transaction(wire, transactional_id))
            fence(wire, transactional_id, before.timeout_ms)
    if as_json:
        output.emit_json(
            {
                "transactional_id": transactional_id,
                "aborted": not dry_run,
                "open_ms": before.open_ms,
                "partitions": partition_dicts(before.partitions),
                "fenced": {
                    "producer_id": before.producer_id,
                    "producer_epoch": before.producer_epoch,
                },
            }
        )
        return
    would = "would abort" if dry_run else "aborted"
    print(f"{would} {transactional_id} ({what})")
    for key in before.partitions:
        print("  {} partition {}".format(*key))
    verb = "would be" if dry_run else "is"
    print("its producer {} with epoch {} {} fenced".format(*before.producer, verb))


def _refuse_if_not_ongoing(found: Description) -> None:
    """Only what is open and undecided can be aborted.

    Raises:
        InvalidTxnStateError: nothing is open, or its end is decided.
    """
    if found.state == "ongoing":
        return
    subject = f"transactional id {found.transactional_id}"
    if found.is_open:
        end = "committed" if found.state == "prepare-commit" else "aborted"
        raise InvalidTxnStateError(
            f"{subject} is being {end} already ({found.state})",
            hint="It waits for its partitions; see them: "
            f"tidemill transaction describe {found.transactional_id}",
        )
    raise InvalidTxnStateError(f"{subject} has no open transaction ({found.state})")


def _refuse_if_another(asked_about: Description, now: Description) -> None:
    """Who said yes meant the transaction that was shown, and may have taken a minute.

    Raises:
        InvalidTxnStateError: it has ended since.
    """
    _refuse_if_not_ongoing(now)
    if (now.producer, now.started_ms) != (asked_about.producer, asked_about.started_ms):
        raise InvalidTxnStateError(
            f"the transaction of {now.transactional_id} has ended, and another one is open",
            hint=f"Look at it: tidemill transaction describe {now.transactional_id}",
        )


def _abort_hanging(
    cluster: Cluster,
    key: TopicPartitionKey,
    producer_id: int,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    from tidemill.cli.transactions import abort_write, open_writes
    from tidemill.cli.wire import Wire

    place = "{} partition {}".format(*key)
    cluster.partitions(key[0], [key[1]])
    with Wire(cluster) as wire:
        found = [each for each in open_writes(wire, [key]) if each.producer_id == producer_id]
        if not found:
            raise TransactionalIdNotFoundError(
                f"producer {producer_id} has no open transaction on {place}",
                hint=f"See those that are open: tidemill transaction find {key[0]}",
            )
        (write,) = found
        _refuse_if_owned(write)
        if not dry_run:
            what = f"the hanging transaction of producer {producer_id} on {place}"
            output.confirm(f"Abort {what}, from offset {write.first_offset} on?", yes=yes)
            abort_write(wire, write)
    if as_json:
        output.emit_json(
            {
                "topic": write.topic,
                "partition": write.partition,
                "producer_id": producer_id,
                "producer_epoch": write.producer_epoch,
                "first_offset": write.first_offset,
                "aborted": not dry_run,
            }
        )
        return
    would = "would abort" if dry_run else "aborted"
    print(f"{would} producer {producer_id} on {place}, from offset {write.first_offset} on")


def _refuse_if_owned(write: OpenWrite) -> None:
    """A marker past the coordinator would tear a transaction that it can end as a whole.

    Raises:
        InvalidTxnStateError: a coordinator knows the transaction.
    """
    owner = write.owner
    if owner is not None:
        raise InvalidTxnStateError(
            f"the transaction of producer {write.producer_id} does not hang: "
            f"it belongs to {owner.transactional_id} ({owner.state})",
            hint=f"Abort all of it: tidemill transaction abort {owner.transactional_id}"
            if owner.state == "ongoing"
            else "It is being ended.",
        )
