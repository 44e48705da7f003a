"""``tidemill transaction abort``: aborts the transaction of an id, or one that hangs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster, TopicPartitionKey
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes
from tidemill.cli.transaction.requests import describe_id, fence
from tidemill.kafka_client.admin.open_writes import OpenWrite, abort_write, open_writes
from tidemill.kafka_client.admin.transactions import Description
from tidemill.log.errors import InvalidTxnStateError
from tidemill.state.errors import TransactionalIdNotFoundError


def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Transactional id of the producer.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="TOPIC", help="Topic of a hanging transaction."),
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
    brokers: Brokers = LOCAL,
) -> None:
    """Abort the open transaction of an ID, and fence its producer.

    Readers with read_committed never see its records, and its producer gets an error on its next
    call. A hanging transaction has no ID: use --topic, --partition and --producer-id.
    """
    place = (topic, partition, producer_id)
    if transactional_id is not None and place == (None, None, None):
        cluster = Cluster.at(brokers)
        _abort_id(cluster, transactional_id, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    if transactional_id is not None or topic is None or partition is None or producer_id is None:
        raise output.UsageError(
            "use either an ID, or --topic, --partition and --producer-id of a hanging transaction",
            hint="Find open ones with: tidemill transaction list; tidemill transaction find",
        )
    cluster = Cluster.at(brokers)
    _abort_hanging(
        cluster, (topic, partition), producer_id, yes=yes, dry_run=dry_run, as_json=as_json
    )


def partition_dicts(keys: Sequence[TopicPartitionKey]) -> list[dict[str, Any]]:
    """Return partitions for JSON."""
    return [{"topic": topic, "partition": partition} for topic, partition in keys]


def _abort_id(
    cluster: Cluster, transactional_id: str, *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    with requests_to(cluster) as requests:
        before = describe_id(requests, transactional_id)
        _check_ongoing(before)
        what = (
            f"{output.plural(len(before.partitions), 'partition')}, "
            f"open for {output.duration_text(before.open_ms) or '0ms'}"
        )
        if not dry_run:
            output.confirm(f"Abort {transactional_id} ({what}) and fence its producer?", yes=yes)
            _check_same(before, describe_id(requests, transactional_id))
            fence(requests, transactional_id, before.timeout_ms)
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


def _check_ongoing(found: Description) -> None:
    """Check that a transaction is open and not decided."""
    if found.state == "ongoing":
        return
    subject = f"transactional id {found.transactional_id}"
    if found.is_open:
        end = "committed" if found.state == "prepare-commit" else "aborted"
        raise InvalidTxnStateError(
            f"{subject} is already being {end} ({found.state})",
            hint="It waits for its partitions. Show them: "
            f"tidemill transaction describe {found.transactional_id}",
        )
    raise InvalidTxnStateError(f"{subject} has no open transaction ({found.state})")


def _check_same(confirmed: Description, now: Description) -> None:
    """Check that the open transaction is the one that the user confirmed, maybe a minute ago."""
    _check_ongoing(now)
    if (now.producer, now.started_ms) != (confirmed.producer, confirmed.started_ms):
        raise InvalidTxnStateError(
            f"the transaction of {now.transactional_id} has ended, and another one is open",
            hint=f"Show it: tidemill transaction describe {now.transactional_id}",
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
    place = "{} partition {}".format(*key)
    cluster.partitions(key[0], [key[1]])
    with requests_to(cluster) as requests:
        found = [each for each in open_writes(requests, [key]) if each.producer_id == producer_id]
        if not found:
            raise TransactionalIdNotFoundError(
                f"producer {producer_id} has no open transaction on {place}",
                hint=f"Find open ones with: tidemill transaction find {key[0]}",
            )
        (write,) = found
        _check_hanging(write)
        if not dry_run:
            what = f"the hanging transaction of producer {producer_id} on {place}"
            output.confirm(f"Abort {what}, from offset {write.first_offset} on?", yes=yes)
            abort_write(requests, write)
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


def _check_hanging(write: OpenWrite) -> None:
    """Check that no coordinator knows the transaction, which must end as a whole otherwise."""
    owner = write.owner
    if owner is not None:
        raise InvalidTxnStateError(
            f"the transaction of producer {write.producer_id} is not hanging: "
            f"it belongs to {owner.transactional_id} ({owner.state})",
            hint=f"Abort it as a whole: tidemill transaction abort {owner.transactional_id}"
            if owner.state == "ongoing"
            else "It is being ended.",
        )
