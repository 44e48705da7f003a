"""``tidemill transaction``: lists and describes transactional ids, with their states."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, Json, command_group
from tidemill.cli.transaction.abort import abort, partition_dicts
from tidemill.cli.transaction.find import find
from tidemill.cli.transaction.requests import describe_id, list_ids
from tidemill.kafka_client.admin.transactions import OPEN_STATES, Description, describe_listed

app = command_group("List, describe and abort transactions; find what holds readers back.")


class State(StrEnum):
    """The state of a transactional id, as users write it."""

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
    """Parse ``90s``, ``1h 30m`` or ``500ms`` to milliseconds."""
    word = text.strip().lower()
    if not re.fullmatch(r"(\d{1,9}\s*(ms|s|m|h|d)\s*)+", word):
        raise output.UsageError(
            f"{flag} {text}: expected a duration", hint="For example 500ms, 30s, 5m, 1h30m or 2d."
        )
    return sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"(\d+)\s*(ms|s|m|h|d)", word))


# --- list ----------------------------------------------------------------------------------------

OnlyState = Annotated[
    list[State] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help=f"Only ids in this state: {', '.join([*State][:-1])} or {[*State][-1]}.",
    ),
]
OnlyProducer = Annotated[
    list[int] | None,
    typer.Option("--producer-id", metavar="N", min=0, help="Only the id of this producer."),
]
OpenLongerThan = Annotated[
    str | None,
    typer.Option(
        "--open-longer-than",
        metavar="DURATION",
        help="Only transactions that have been open for longer, e.g. 30s, 5m, 1h30m.",
    ),
]
IdPattern = Annotated[
    str | None,
    typer.Option(
        "--id-pattern",
        metavar="REGEX",
        help="Only ids that this regular expression (RE2) matches as a whole, e.g. 'shop-.*'.",
    ),
]


@app.command("list", short_help="List transactional ids, with their states.")
def list_all(
    state: OnlyState = None,
    producer_id: OnlyProducer = None,
    open_longer_than: OpenLongerThan = None,
    id_pattern: IdPattern = None,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """List transactional ids, with the state of the last transaction of each."""
    longer = None
    if open_longer_than is not None:
        longer = duration_ms(open_longer_than, "--open-longer-than")
    filters: dict[str, Any] = {
        "states": [each.value for each in state or ()],
        "producer_ids": producer_id or (),
        "open_longer_than_ms": longer,
        "id_pattern": id_pattern,
    }
    rows = _rows(Cluster.at(brokers), filters)
    columns: output.Columns = {
        "TRANSACTION": "transactional_id",
        "STATE": "state",
        "PRODUCER": "producer_id",
        "COORDINATOR": "coordinator",
        "OPEN": lambda each: output.duration_text(each["open_ms"]),
    }
    output.emit_columns(columns, rows, as_json=as_json)
    if rows:
        return
    if id_pattern:
        output.note("No id matches. --id-pattern must match an id as a whole, e.g. 'shop-.*'.")
    elif state or producer_id or open_longer_than:
        output.note("No id matches.")
    else:
        output.note("There are no ids. A producer with a transactional.id creates one.")


def _rows(cluster: Cluster, filters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ids that pass the filters. Open ones have the time since their begin."""
    with requests_to(cluster) as requests:
        listed = list_ids(requests, **filters)
        still_open = [each for each in listed if each.state in OPEN_STATES]
        descriptions = {d.transactional_id: d for d in describe_listed(requests, still_open)}
    return [
        {
            "transactional_id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "coordinator": each.coordinator,
            "open_ms": getattr(descriptions.get(each.transactional_id), "open_ms", None),
        }
        for each in listed
    ]


# --- describe ------------------------------------------------------------------------------------


@app.command(short_help="Show a transactional id and its open transaction.")
def describe(
    transactional_id: Annotated[
        str, typer.Argument(metavar="ID", help="Transactional id of the producer.")
    ],
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Show a transactional id: its producer, and its open transaction."""
    with requests_to(Cluster.at(brokers)) as requests:
        found = describe_id(requests, transactional_id)
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


app.command()(find)
app.command()(abort)
