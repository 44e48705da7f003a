"""Compare this checkout with another one, for example with the commit before a change.

    git worktree add /tmp/before REVISION
    python -m bench --only regression --against /tmp/before

Both brokers run at the same time and take turns with the same loads, so that the ratios mean
something on a noisy machine. The broker's processor time is less noisy than the clock's.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from bench import latency, librdkafka, throughput, wire
from bench.report import Aim, Cell, Section, Table
from bench.run import Run, percentile, ratio
from bench.targets import Target, other_checkout, tidemill
from bench.wire import Load

COLUMNS = ["what", "record", "partitions", "acks", "before MB/s", "now MB/s", "now/before", "CPU"]
NOTE = (
    "Two checkouts in one run. CPU: processor time of the broker for the same work, now/before; "
    "below 1 is better."
)
NOISE = 0.9
"""The median ratio of all cases must not fall below this. Single cases vary more than that."""

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Turn:
    """The times of one turn: of the client, and processor time of the broker, in seconds."""

    produce: float
    consume: float
    cpu: float


def section(run: Run) -> Section:
    """Measure throughput with pre-encoded batches and with librdkafka, and latency."""
    table = Table("This checkout against another one", COLUMNS, note=NOTE)
    result = Section("regression", [table])
    other = run.options.against
    if other is None:
        run.say("regression: skipped; name another checkout with --against")
        return result
    with _servers(run.options.folder, other) as servers:
        for target in servers.values():
            librdkafka.prepare(target)
        throughput.warm_up(run, list(servers.values()))
        for size, partitions, acks in itertools.product((100, 1024), (1, 16), (1, -1)):
            load = Load(size, partitions, run.options.megabytes * 1_000_000)
            run.say(f"regression: {size} B, {partitions} partition(s), acks {acks}")
            table.rows += _rows(run, "batches", load, acks, servers, partial(_batches, load, acks))
        for acks in (1, -1):
            load = Load(100, 4, 500_000 * 100)
            run.say(f"regression: librdkafka, acks {acks}")
            table.rows += _rows(
                run, "librdkafka", load, acks, servers, partial(_client, load, acks)
            )
        table.rows.append(_latency(run, servers))
    ratios = [row[6] for row in table.rows if isinstance(row[6], float)]
    cpu = [row[7] for row in table.rows if isinstance(row[7], float)]
    result.aims += [
        Aim("throughput now/before, median", statistics.median(ratios), NOISE, "", at_most=False),
        Aim("broker CPU now/before, median", statistics.median(cpu), 1 / NOISE, "", at_most=True),
    ]
    return result


@contextlib.contextmanager
def _servers(folder: Path, other: Path) -> Iterator[dict[str, Target]]:
    with other_checkout(folder, other) as before, tidemill(folder) as now:
        yield {"before": before, "now": now}


def _rows(
    run: Run,
    kind: str,
    load: Load,
    acks: int,
    servers: dict[str, Target],
    serve: Callable[[Target], throughput.Took],
) -> list[list[Cell]]:
    contenders = {name: partial(_turn, target, serve) for name, target in servers.items()}
    turns = run.take_turns(contenders)
    megabytes = load.batches * load.records_per_batch * load.record_bytes / 1e6
    cpu = ratio([each.cpu for each in turns["now"]], [each.cpu for each in turns["before"]])
    rows: list[list[Cell]] = []
    for what in ("produce", "consume"):
        took = {name: [getattr(each, what) for each in of] for name, of in turns.items()}
        rows.append(
            [
                *(f"{what}, {kind}", f"{load.record_bytes} B", load.partitions),
                throughput.label(acks),
                *(megabytes / statistics.median(took[name]) for name in ("before", "now")),
                *(ratio(took["before"], took["now"]), cpu),
            ]
        )
    return rows


def _turn(target: Target, serve: Callable[[Target], throughput.Took]) -> Turn:
    process = psutil.Process(target.pid)
    began = process.cpu_times()
    took = serve(target)
    ended = process.cpu_times()
    cpu = ended.user - began.user + ended.system - began.system
    return Turn(took.produce, took.consume, cpu)


def _batches(load: Load, acks: int, target: Target) -> throughput.Took:
    return throughput.served(target, load, wire.make_batch(load), acks)


def _client(load: Load, acks: int, target: Target) -> throughput.Took:
    return librdkafka.served(target, load, acks)


def _latency(run: Run, servers: dict[str, Target]) -> list[Cell]:
    """Measure a synchronous producer, acks=all. The ratio is before/now: above 1 is better."""
    batch = wire.make_batch(Load(1024, 1, 1024, batch_bytes=1024))
    contenders: dict[str, Callable[[], list[float]]] = {}
    for name, target in servers.items():
        topic = f"regression-latency-{next(_topic_numbers)}"
        target.create_topic(topic, 1)
        target.write_first(topic, 1, batch)
        contenders[name] = partial(latency.raw_client, target, topic, batch, 200)
    run.say("regression: latency")
    turns = run.take_turns(contenders)
    p50 = {
        name: [percentile(seconds, 50) * 1e3 for seconds in each] for name, each in turns.items()
    }
    return [
        *("durable latency, p50 in ms", "1024 B", 1, "all"),
        *(statistics.median(p50["before"]), statistics.median(p50["now"])),
        *(ratio(p50["before"], p50["now"]), None),
    ]
