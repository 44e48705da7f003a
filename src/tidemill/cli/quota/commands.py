"""``tidemill quota``: sets, lists and deletes quotas of users, clients and addresses (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, Json, Yes, command_group
from tidemill.kafka_client.admin.requests import BrokerRequests, check_error_code

app = command_group("Set, list and delete quotas: bytes, processor time, partitions, connections.")

DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
_VERSIONS = (0, 1)
DEFAULT = "*"
"""On the command line: all that have no quota of their own."""

NAMES = {
    "produce": "producer_byte_rate",
    "fetch": "consumer_byte_rate",
    "request": "request_percentage",
    "mutation": "controller_mutation_rate",
    "connections": "connection_creation_rate",
}
"""The options of ``quota set`` -> Kafka's names."""

User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Of this user; * is the default.")
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="ID", help="Of clients with this id; * is the default."),
]
Ip = Annotated[
    str | None,
    typer.Option("--ip", metavar="ADDRESS", help="Of connections from here; * is the default."),
]


@app.command("set")
def set_(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    produce: Annotated[
        float | None, typer.Option("--produce", metavar="BYTES", help="Bytes to write per second.")
    ] = None,
    fetch: Annotated[
        float | None, typer.Option("--fetch", metavar="BYTES", help="Bytes to read per second.")
    ] = None,
    request: Annotated[
        float | None,
        typer.Option("--request", metavar="PERCENT", help="Processor time in percent."),
    ] = None,
    mutation: Annotated[
        float | None,
        typer.Option("--mutation", metavar="N", help="Partitions to create or delete per second."),
    ] = None,
    connections: Annotated[
        float | None,
        typer.Option("--connections", metavar="N", help="New connections per second, with --ip."),
    ] = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Set quotas of a user, of clients with an id, or of an address."""
    given = {
        "produce": produce,
        "fetch": fetch,
        "request": request,
        "mutation": mutation,
        "connections": connections,
    }
    values = {NAMES[name]: value for name, value in given.items() if value is not None}
    if not values:
        options = ", ".join(f"--{name}" for name in given)
        raise output.UsageError("say which quota", hint=f"Use {options}.")
    entity = _entity(user, client_id, ip)
    with requests_to(Cluster.at(brokers)) as requests:
        _alter(requests, entity, {name: (value, False) for name, value in values.items()})
    for name, value in values.items():
        print(f"set {name} of {_entity_text(entity)} to {value:g}")


@app.command("list")
def list_(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List quotas."""
    with requests_to(Cluster.at(brokers)) as requests:
        found = _described(requests)
    if as_json:
        output.emit_json([{"entity": entity, "quotas": values} for entity, values in found])
        return
    output.emit_table(
        ["OF", "QUOTA", "VALUE"],
        [
            (_entity_text(entity), name, f"{value:g}")
            for entity, values in found
            for name, value in values.items()
        ],
    )


@app.command()
def delete(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    yes: Yes = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete all quotas of a user, of clients with an id, or of an address."""
    entity = _entity(user, client_id, ip)
    with requests_to(Cluster.at(brokers)) as requests:
        found = next((values for known, values in _described(requests) if known == entity), None)
        if found is None:
            raise output.NotFoundError(
                f"{_entity_text(entity)} has no quota", hint="See: tidemill quota list"
            )
        output.confirm(f"Delete the quotas of {_entity_text(entity)}?", yes=yes)
        _alter(requests, entity, dict.fromkeys(found, (0.0, True)))
    print(f"deleted {', '.join(found)} of {_entity_text(entity)}")


Entity = dict[str, str]
"""Kafka's type of an entity -> its name, ``*`` for the default."""


def _entity(user: str | None, client_id: str | None, ip: str | None) -> Entity:
    given = {"user": user, "client-id": client_id, "ip": ip}
    entity = {kind: name for kind, name in given.items() if name}
    if not entity:
        raise output.UsageError("say whose quota: --user, --client-id, both, or --ip")
    if ip and len(entity) > 1:
        raise output.UsageError("--ip goes without --user and --client-id")
    return entity


def _entity_text(entity: Entity) -> str:
    names = {"client-id": "client", "ip": "address"}
    return ", ".join(f"{names.get(kind, kind)} {name}" for kind, name in entity.items())


def _described(requests: BrokerRequests) -> list[tuple[Entity, dict[str, float]]]:
    tree: dict[str, Any] = {"components": [], "strict": False}
    response = requests.ask(None, DESCRIBE_QUOTAS, _VERSIONS, tree)
    check_error_code(response.error_code, "the quotas", response.error_message)
    return [
        (
            {each.entity_type: each.entity_name or DEFAULT for each in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in response.entries or ()
    ]


def _alter(
    requests: BrokerRequests, entity: Entity, values: Mapping[str, tuple[float, bool]]
) -> None:
    names = [
        {"entity_type": kind, "entity_name": None if name == DEFAULT else name}
        for kind, name in entity.items()
    ]
    ops = [
        {"key": name, "value": value, "remove": remove} for name, (value, remove) in values.items()
    ]
    tree = {"entries": [{"entity": names, "ops": ops}], "validate_only": False}
    response = requests.ask(None, ALTER_QUOTAS, _VERSIONS, tree)
    for each in response.entries:
        check_error_code(each.error_code, "the quota", each.error_message)
