"""``tidemill topic``: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import (
    BOOTSTRAP_DEFAULT,
    REQUEST_SECONDS,
    Bootstrap,
    Cluster,
    DryRun,
    Json,
    Property,
    Yes,
    is_internal,
    pairs,
)
from tidemill.cli.consume import consume
from tidemill.cli.produce import produce
from tidemill.errors import (
    InvalidPartitionsError,
    InvalidTopicError,
    TidemillError,
    TopicExistsError,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import ConfigEntry

app = typer.Typer(
    help="Topics: create, list, describe, alter, delete; produce and consume.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MAX_PARTITIONS = 100_000
"""More the client library does not send."""

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of the topics.")]


@app.command()
def create(
    names: Names,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            max=MAX_PARTITIONS,
            help="Partitions; default: the broker's default.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            metavar="N",
            min=1,
            max=32_767,
            help="Replicas; default: the broker's.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A topic config, e.g. retention.ms=60000."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that exists is no error.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Create topics."""
    from confluent_kafka.admin import NewTopic

    configs = pairs(config, "--set")
    cluster = Cluster.at(servers, properties)
    new = [NewTopic(n, partitions or -1, replication_factor or -1, config=configs) for n in names]
    futures = cluster.admin.create_topics(
        new, request_timeout=REQUEST_SECONDS, validate_only=dry_run
    )
    results = []
    failures: list[TidemillError] = []
    for name, future in futures.items():
        created = True
        try:
            cluster.ask(f"topic {name}", future.result)
        except TidemillError as error:
            if not (if_not_exists and isinstance(error, TopicExistsError)):
                failures.append(error)
                continue
            created = False
        results.append({"topic": name, "created": created and not dry_run})
        if not as_json:
            verb = "would create" if dry_run else "created"
            print(f"{verb} {name}" if created else f"{name} exists")
    if as_json:
        output.emit_json(results)
    output.raise_all(failures)


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Also topics that the broker keeps for itself.")
    ] = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """List topics."""
    cluster = Cluster.at(servers, properties)
    topics = {
        name: count for name, count in cluster.topics().items() if internal or not is_internal(name)
    }
    offsets = cluster.offsets([(n, p) for n, count in topics.items() for p in range(count)])
    rows = [
        {
            "topic": name,
            "partitions": count,
            "records": sum(offsets[name, p].count for p in range(count)),
        }
        for name, count in topics.items()
    ]
    if as_json:
        output.emit_json(rows)
    else:
        output.emit_table(["TOPIC", "PARTITIONS", "RECORDS"], [list(row.values()) for row in rows])
    if not rows:
        output.note("There are no topics. Create one: tidemill topic create NAME")


@app.command(short_help="Show a topic: its partitions, offsets, sizes and configs.")
def describe(
    name: Name,
    everything: Annotated[
        bool, typer.Option("--all", help="All configs, also those at their default.")
    ] = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Show a topic: its partitions with offsets and sizes, and its configs."""
    from tidemill.cli.logdirs import partition_sizes

    cluster = Cluster.at(servers, properties)
    topic = cluster.describe_topic(name)
    offsets = cluster.offsets([(name, p.id) for p in topic.partitions])
    sizes = partition_sizes(cluster, name)
    partitions = [
        {
            "partition": p.id,
            "start_offset": offsets[name, p.id].start,
            "end_offset": offsets[name, p.id].end,
            "records": offsets[name, p.id].count,
            "size_bytes": sizes.get(p.id),
            "leader": p.leader.id if p.leader else None,
            "replicas": [node.id for node in p.replicas],
            "in_sync": [node.id for node in p.isr],
        }
        for p in sorted(topic.partitions, key=lambda p: p.id)
    ]
    configs = [
        {"name": c.name, "value": c.value, "source": _source(c)}
        for c in _configs(cluster, name)
        if everything or _source(c) != "default"
    ]
    summary = {
        "topic": name,
        "id": str(topic.topic_id) if topic.topic_id else None,
        "internal": bool(topic.is_internal),
        "partitions": partitions,
        "configs": configs,
    }
    if as_json:
        output.emit_json(summary)
        return
    total = sum(sizes.values()) if sizes else None
    output.emit_fields(
        [
            ("topic", name),
            ("id", summary["id"]),
            ("partitions", len(partitions)),
            ("records", sum(offset.count for offset in offsets.values())),
            ("size", output.size_text(total)),
        ]
    )
    print()
    output.emit_table(
        ["PARTITION", "START", "END", "RECORDS", "SIZE", "LEADER"],
        [
            [
                p["partition"],
                p["start_offset"],
                p["end_offset"],
                p["records"],
                output.size_text(sizes.get(p["partition"])),
                p["leader"],
            ]
            for p in partitions
        ],
    )
    print()
    if configs:
        output.emit_table(["CONFIG", "VALUE", "SOURCE"], [list(c.values()) for c in configs])
    else:
        print("all configs are at their defaults (--all shows them)")


def _configs(cluster: Cluster, name: str) -> list[ConfigEntry]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    def call() -> Any:
        resource = ConfigResource(ResourceType.TOPIC, name)
        futures = cluster.admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
        return futures[resource].result()

    return sorted(cluster.ask(f"topic {name}", call).values(), key=lambda entry: str(entry.name))


def _source(entry: ConfigEntry) -> str:
    """Where a config's value comes from: topic, broker (dynamic), broker file, or default."""
    return {
        1: "topic",
        2: "broker",
        3: "all brokers",
        4: "broker file",
        5: "default",
        6: "group",
    }.get(_number(entry.source), "unknown")


def _number(source: Any) -> int:
    return int(getattr(source, "value", source))


@app.command()
def alter(
    name: Name,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a config.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="KEY", help="Take a config back to its default."),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            max=MAX_PARTITIONS,
            help="New number of partitions; it only grows.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Change a topic's configs or add partitions."""
    from confluent_kafka.admin import NewPartitions

    to_set = pairs(set_, "--set")
    if not (to_set or unset or partitions):
        raise output.UsageError(
            "nothing to change", hint="Give --set KEY=VALUE, --unset KEY or --partitions N."
        )
    cluster = Cluster.at(servers, properties)
    before = len(cluster.describe_topic(name).partitions)
    if partitions and partitions <= before:
        raise InvalidPartitionsError(
            f"topic {name} has {output.plural(before, 'partition')}, and the number only grows",
            hint=f"Ask for {before + 1} or more.",
        )
    if to_set or unset:
        _alter_configs(cluster, name, to_set, unset or [], dry_run=dry_run)
    if partitions:
        futures = cluster.admin.create_partitions(
            [NewPartitions(name, partitions)],
            request_timeout=REQUEST_SECONDS,
            validate_only=dry_run,
        )
        cluster.ask(f"topic {name}", futures[name].result)
    if as_json:
        output.emit_json(
            {"topic": name, "set": to_set, "unset": unset or [], "partitions": partitions or before}
            | ({"dry_run": True} if dry_run else {})
        )
        return
    would = "would " if dry_run else ""
    for key, value in to_set.items():
        print(f"{would}set {key}={value} on {name}")
    for key in unset or []:
        print(f"{would}unset {key} on {name}")
    if partitions:
        print(f"{would}grow {name} from {before} to {output.plural(partitions, 'partition')}")


def _alter_configs(
    cluster: Cluster, name: str, to_set: dict[str, str], unset: list[str], *, dry_run: bool
) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in to_set.items()
    ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unset]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    futures = cluster.admin.incremental_alter_configs(
        [resource], request_timeout=REQUEST_SECONDS, validate_only=dry_run
    )
    cluster.ask(f"topic {name}", next(iter(futures.values())).result)


@app.command()
def delete(
    names: Names,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Delete topics and all their records."""
    cluster = Cluster.at(servers, properties)
    counts = {}
    for name in names:
        if is_internal(name):
            raise InvalidTopicError(f"topic {name} belongs to the broker and is not deleted")
        offsets = cluster.offsets(cluster.partitions(name))
        counts[name] = sum(offset.count for offset in offsets.values())
    if not dry_run:
        what = ", ".join(f"{n} ({output.plural(c, 'record')})" for n, c in counts.items())
        output.confirm(f"Delete {what}?", yes=yes)
        futures = cluster.admin.delete_topics(list(names), request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            cluster.ask(f"topic {name}", future.result)
    if as_json:
        output.emit_json(
            [{"topic": n, "records": c, "deleted": not dry_run} for n, c in counts.items()]
        )
        return
    for name, count in counts.items():
        verb = "would delete" if dry_run else "deleted"
        print(f"{verb} {name} ({output.plural(count, 'record')})")


app.command()(produce)
app.command(short_help="Print records and follow the topic.")(consume)
