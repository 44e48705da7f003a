"""``tidemill topic``: creates, lists, describes and deletes topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import (
    MAX_PARTITIONS,
    REQUEST_SECONDS,
    Cluster,
    PartitionOffsets,
    is_internal,
)
from tidemill.cli.options import (
    LOCAL,
    Brokers,
    DryRun,
    Json,
    TopicName,
    TopicNames,
    Yes,
    command_group,
    pairs,
)
from tidemill.cli.topic.alter import alter
from tidemill.cli.topic.configs import topic_configs
from tidemill.cli.topic.consume import consume
from tidemill.cli.topic.lag_policy import lag_policy, policy_text
from tidemill.cli.topic.logdirs import partition_sizes
from tidemill.cli.topic.produce import produce
from tidemill.confluent.configs import config_source, is_set
from tidemill.errors import TidemillError, TopicExistsError
from tidemill.log.errors import InvalidTopicError

app = command_group("Create, list, describe, alter and delete topics; produce and consume records.")

# --- create --------------------------------------------------------------------------------------

Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        "-p",
        metavar="N",
        min=1,
        max=MAX_PARTITIONS,
        help="Number of partitions; default: the broker's default.",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        metavar="N",
        min=1,
        max=32_767,
        help="Number of replicas; default: the broker's default.",
    ),
]
NewConfigs = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A topic config, e.g. retention.ms=60000."),
]


@app.command()
def create(
    names: TopicNames,
    partitions: Partitions = None,
    replication_factor: Replicas = None,
    config: NewConfigs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Create topics."""
    from confluent_kafka.admin import NewTopic

    configs = pairs(config, "--set")
    cluster = Cluster.at(brokers)
    new = [
        NewTopic(n, partitions or -1, replication_factor or -1, config=configs)
        for n in dict.fromkeys(names)
    ]
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


# --- list ----------------------------------------------------------------------------------------


@app.command("list")
def list_topics(
    internal: Annotated[
        bool, typer.Option("--internal", help="Show the broker's internal topics too.")
    ] = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """List topics."""
    cluster = Cluster.at(brokers)
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
    output.emit_columns(output.titled("topic", "partitions", "records"), rows, as_json=as_json)
    if not rows:
        output.note("There are no topics. Create one: tidemill topic create NAME")


# --- describe ------------------------------------------------------------------------------------


@app.command(short_help="Show a topic: its partitions, offsets, sizes and configs.")
def describe(
    name: TopicName,
    everything: Annotated[
        bool, typer.Option("--all", help="Show configs with their default value too.")
    ] = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Show a topic: its partitions with offsets and sizes, and its configs."""
    cluster = Cluster.at(brokers)
    topic = cluster.describe_topic(name)
    offsets = cluster.offsets([(name, p.id) for p in topic.partitions])
    sizes = partition_sizes(cluster, name)
    configs = topic_configs(cluster, name)
    values = {str(c.name): str(c.value) for c in configs}
    summary = {
        "topic": name,
        "id": str(topic.topic_id) if topic.topic_id else None,
        "internal": bool(topic.is_internal),
        "partitions": [
            _partition_dict(p, offsets[name, p.id], sizes.get(p.id))
            for p in sorted(topic.partitions, key=lambda p: p.id)
        ],
        "configs": [
            {"name": c.name, "value": c.value, "source": config_source(c)}
            for c in configs
            if everything or is_set(c)
        ],
        "lag_policy": lag_policy(cluster, values, offsets, sizes),
    }
    if as_json:
        output.emit_json(summary)
    else:
        _emit_description(summary, sizes)


def _partition_dict(partition: Any, offsets: PartitionOffsets, size: int | None) -> dict[str, Any]:
    return {
        "partition": partition.id,
        "start_offset": offsets.start,
        "end_offset": offsets.end,
        "records": offsets.count,
        "size_bytes": size,
        "leader": partition.leader.id if partition.leader else None,
        "replicas": [node.id for node in partition.replicas],
        "in_sync": [node.id for node in partition.isr],
    }


def _emit_description(summary: Mapping[str, Any], sizes: Mapping[int, int]) -> None:
    partitions, configs = summary["partitions"], summary["configs"]
    policy = summary["lag_policy"]
    output.emit_fields(
        [
            ("topic", summary["topic"]),
            ("id", summary["id"]),
            ("partitions", len(partitions)),
            ("records", sum(p["records"] for p in partitions)),
            ("size", output.size_text(sum(sizes.values()) if sizes else None)),
            *([("lag policy", policy_text(policy))] if policy else []),
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
                output.size_text(p["size_bytes"]),
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


app.command()(alter)


# --- delete --------------------------------------------------------------------------------------


@app.command()
def delete(
    names: TopicNames,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete topics and all their records."""
    cluster = Cluster.at(brokers)
    counts = {}
    failures: list[TidemillError] = []
    for name in names:
        if is_internal(name):
            raise InvalidTopicError(f"topic {name} is internal and can't be deleted")
        offsets = cluster.offsets(cluster.partitions(name))
        counts[name] = sum(offset.count for offset in offsets.values())
    if not dry_run:
        what = ", ".join(f"{n} ({output.plural(c, 'record')})" for n, c in counts.items())
        output.confirm(f"Delete {what}?", yes=yes)
        futures = cluster.admin.delete_topics(list(counts), request_timeout=REQUEST_SECONDS)
        for name, future in futures.items():
            try:
                cluster.ask(f"topic {name}", future.result)
            except TidemillError as error:  # the others are deleted all the same
                failures.append(error)
                del counts[name]
    if as_json:
        output.emit_json(
            [{"topic": n, "records": c, "deleted": not dry_run} for n, c in counts.items()]
        )
    else:
        for name, count in counts.items():
            verb = "would delete" if dry_run else "deleted"
            print(f"{verb} {name} ({output.plural(count, 'record')})")
    output.raise_all(failures)


app.command()(produce)
app.command(short_help="Print records and follow the topic.")(consume)
