"""``tidemill topic alter``: changes the configs of a topic, or adds partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import MAX_PARTITIONS, REQUEST_SECONDS, Cluster
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, TopicName, pairs
from tidemill.cli.topic.configs import ALL_CONFIGS, topic_configs
from tidemill.confluent.configs import config_source
from tidemill.log.errors import InvalidConfigError
from tidemill.state.errors import InvalidPartitionsError

SetConfigs = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a config.")
]
UnsetConfigs = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="KEY", help="Reset a config to its default."),
]
MorePartitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        "-p",
        metavar="N",
        min=1,
        max=MAX_PARTITIONS,
        help="New number of partitions. It can only increase.",
    ),
]


@dataclass(frozen=True)
class _Changes:
    """The changes that ``topic alter`` makes. ``partitions`` None leaves their number."""

    to_set: Mapping[str, str]
    to_unset: Sequence[str]
    partitions: int | None

    def lines(self, name: str, before: int) -> list[str]:
        """Return a line per change for people, without "would". ``before``: of partitions."""
        lines = [f"set {key}={value} on {name}" for key, value in self.to_set.items()]
        lines += [f"unset {key} on {name}" for key in self.to_unset]
        if self.partitions:
            after = output.plural(self.partitions, "partition")
            lines.append(f"grow {name} from {before} to {after}")
        return lines


def alter(
    name: TopicName,
    set_: SetConfigs = None,
    unset: UnsetConfigs = None,
    partitions: MorePartitions = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Change a topic's configs or add partitions."""
    changes = _Changes(pairs(set_, "--set"), unset or [], partitions)
    if not (changes.to_set or changes.to_unset or partitions):
        raise output.UsageError(
            "nothing to change", hint="Use --set KEY=VALUE, --unset KEY or --partitions N."
        )
    cluster = Cluster.at(brokers)
    before = len(cluster.describe_topic(name).partitions)
    if partitions and partitions <= before:
        raise InvalidPartitionsError(
            f"topic {name} has {output.plural(before, 'partition')}, and the number can only "
            "increase",
            hint=f"Use {before + 1} or more.",
        )
    if changes.to_unset:
        _check_unset(cluster, name, changes.to_unset)
    if changes.to_set or changes.to_unset:
        _alter_configs(cluster, name, changes, dry_run=dry_run)
    if partitions:
        _add_partitions(cluster, name, partitions, dry_run=dry_run)
    if as_json:
        output.emit_json(
            {
                "topic": name,
                "set": changes.to_set,
                "unset": changes.to_unset,
                "partitions": partitions or before,
            }
            | ({"dry_run": True} if dry_run else {})
        )
        return
    for line in changes.lines(name, before):
        print(f"would {line}" if dry_run else line)


def _check_unset(cluster: Cluster, name: str, keys: Sequence[str]) -> None:
    """Check the names of configs to unset. Brokers delete any name without an error."""
    from difflib import get_close_matches

    entries = {str(entry.name): entry for entry in topic_configs(cluster, name)}
    for key in keys:
        if key not in entries:
            close = get_close_matches(key, entries, n=1)
            raise InvalidConfigError(
                f"unknown topic config {key!r}",
                hint=f"Did you mean {close[0]}?" if close else ALL_CONFIGS.format(name),
            )
        if config_source(entries[key]) != "topic":
            output.warn(f"{key} is not set on {name}: nothing changes")


def _alter_configs(cluster: Cluster, name: str, changes: _Changes, *, dry_run: bool) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in changes.to_set.items()
    ] + [
        ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
        for key in changes.to_unset
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    futures = cluster.admin.incremental_alter_configs(
        [resource], request_timeout=REQUEST_SECONDS, validate_only=dry_run
    )
    cluster.ask(f"topic {name}", next(iter(futures.values())).result)


def _add_partitions(cluster: Cluster, name: str, total: int, *, dry_run: bool) -> None:
    from confluent_kafka.admin import NewPartitions

    futures = cluster.admin.create_partitions(
        [NewPartitions(name, total)], request_timeout=REQUEST_SECONDS, validate_only=dry_run
    )
    cluster.ask(f"topic {name}", futures[name].result)
