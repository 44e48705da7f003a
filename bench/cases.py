"""The table of cases: what the sections about produce and fetch requests measure.

With another checkout, each of these sections compares brokers of both instead:

    git worktree add /tmp/before REVISION
    python -m bench --only requests --against /tmp/before

All brokers run at the same time and take turns, so that the ratios mean something on a noisy
machine. The broker's processor time is less noisy than the clock's.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from tests.support.apache_kafka import KafkaNotFoundError

from bench import load, targets
from bench.clients import perf_tools
from bench.compare import Comparison, Figures, ratio_of, typical
from bench.load import Case, Client
from bench.report import Aim, Section
from bench.run import Options, Run
from bench.targets import Target

Found = Mapping[Case, Mapping[str, Sequence[Figures]]]
"""Case -> contender -> the figures of its turns."""
Beside = Literal["flush", "floors", "bare", "raw", "checked", "rules"]

PRODUCE_CPU = ("CPU µs/record", "client CPU µs/record", "idle", "disk bytes/byte")
LATENCIES = ("p50 ms", "p99 ms", "p99.9 ms")
NO_SYNC = "Apache Kafka does not sync, unless flush.messages is 1."
FLOOR = (
    "Floor: a server that only answers, immediately or after one write and fdatasync for all "
    "requests that are there (bench/clients/floor.py). Disk: bytes that the server wrote for each "
    "byte of records."
)


@dataclass(frozen=True)
class Spec:
    """A section: its cases, and what is shown of them.

    Attributes:
        title: Title of the table.
        cases: The cases. Those of Java are left out where its tools are missing.
        figures: The figures that are shown.
        note: Text below the table.
        beside: Contenders in addition to tidemill and Apache Kafka: Apache Kafka with
            flush.messages=1 for light loads, servers that do nothing else, a bare write and
            fdatasync, the raw baseline, that with the work of every broker, and tidemill with
            rules of access.
        base: The contender that ratios are taken to.
        by: The figures with such a ratio.
        to_first: The figure with a ratio to the first case.
        aims: Returns the aims.
        needs_against: Whether it is only measured against another checkout.
    """

    title: str
    cases: Sequence[Case]
    figures: Sequence[str]
    note: str = ""
    beside: Sequence[Beside] = ()
    base: str = "kafka"
    by: Sequence[str] = ()
    to_first: str = ""
    aims: Callable[[Found], list[Aim]] | None = None
    needs_against: bool = False


def measure(name: str, run: Run, specs: Sequence[Spec]) -> Section:
    """Measure a section."""
    result, other = Section(name), run.options.against
    if other is None and any(spec.needs_against for spec in specs):
        run.say(f"{name}: skipped; name another checkout with --against")
        return result
    beside = {each for spec in specs for each in spec.beside}
    with _contenders(run, beside) as servers:
        run.say(f"{name}: warming up")
        for each in servers:
            if not each.configs and not each.name.startswith("floor"):
                load.warm_up(each, run.options)
        for spec in specs:
            compared, found = _table(name, run, spec, servers)
            result.tables.append(compared.table())
            result.aims += compared.regressions()
            if other is None and spec.aims is not None:
                result.aims += spec.aims(found)
    return result


def _table(name: str, run: Run, spec: Spec, servers: list[Target]) -> tuple[Comparison, Found]:
    compared = Comparison(
        run,
        spec.title,
        spec.figures,
        base=spec.base,
        by=spec.by,
        to_first=spec.to_first,
        note=spec.note,
    )
    found: dict[Case, Mapping[str, Sequence[Figures]]] = {}
    for case in spec.cases:
        if (case.is_long and run.options.quick) or (case.client == "Java" and not _has_java()):
            continue
        run.say(f"{name}: {case}")
        turns: dict[str, Callable[[], Figures]] = {}
        if run.options.against is None:
            turns = _without_a_broker(spec, case, run.options)
        for each in servers:
            if (each.configs and not ("flush" in spec.beside and case.is_light)) or (
                each.name.startswith("floor") and "floors" not in spec.beside
            ):
                continue
            topic = load.topic_of(case, each, run.options)
            turns[each.name] = partial(load.turn, case, each, topic, run.options)
        found[case] = compared.measure([str(case)], turns)
    return compared, found


@contextmanager
def _contenders(run: Run, beside: set[Beside]) -> Iterator[list[Target]]:
    """Start the servers."""
    with ExitStack() as stack:
        found = stack.enter_context(run.servers())
        if "floors" in beside and run.options.against is None:
            folder = Path(stack.enter_context(TemporaryDirectory(dir=run.options.folder)))
            found += [stack.enter_context(targets.floor(folder, sync=s)) for s in (False, True)]
        if "rules" in beside and run.options.against is None:
            found.append(stack.enter_context(targets.tidemill_with_rules(run.options.folder)))
        for each in found:
            each.prepare()
        kafka = [each for each in found if each.name == "kafka" and "flush" in beside]
        flush = {"flush_messages": "1"}
        yield [
            *found,
            *(
                dataclasses.replace(k, name=f"{k.name}, flush.messages=1", configs=flush)
                for k in kafka
            ),
        ]


def _without_a_broker(spec: Spec, case: Case, options: Options) -> dict[str, Callable[[], Figures]]:
    found: dict[str, Callable[[], Figures]] = {}
    if "bare" in spec.beside:
        found["bare sync"] = partial(load.bare, case, options)
    for name in ("raw", "checked"):
        if name in spec.beside and case.kind in ("bulk", "read") and case.codec == "none":
            found[name] = partial(load.copied, case, options, checked=name == "checked")
    return found


@cache
def _has_java() -> bool:
    try:
        perf_tools.check()
    except KafkaNotFoundError as error:
        print(f"note: no perf tools, so Java's clients are left out: {error}", file=sys.stderr)
        return False
    return True


# --- aims ----------------------------------------------------------------------------------------


def _latency_aims(found: Found) -> list[Aim]:
    [of] = [of for case, of in found.items() if case.client == "raw" and case.size == 1024]
    bare, ours = typical(of["bare sync"], "p50 ms"), typical(of["tidemill"], "p50 ms")
    assert bare is not None
    assert ours is not None
    what = f"durable latency p50, 1 KB: 1.5 x bare sync ({bare:.3f} ms) + 0.5 ms"
    return [Aim(what, ours, 1.5 * bare + 0.5, "ms", at_most=True)]


def _throughput_aims(found: Found) -> list[Aim]:
    aims = []
    for (what, limit), (size, label) in itertools.product(
        (("produce", 0.8), ("consume", 0.6)), ((65_536, "64 KB"), (1_000_000, "1 MB"))
    ):
        ratios = [
            ratio_of(of["tidemill"], of["raw"], f"{what} MB/s") or 0.0
            for case, of in found.items()
            if case.size >= 1000 and case.batch_bytes == size
        ]
        text = f"{what} throughput to raw baseline, 1 KB and above, batches of {label}, worst case"
        aims.append(Aim(text, min(ratios), limit, "", at_most=False))
    return aims


def _p50(found: Found, partitions: int, who: str) -> float:
    [of] = [of for case, of in found.items() if case.partitions == partitions]
    value = typical(of[who], "p50 ms")
    assert value is not None
    return value


def _spread_aims(found: Found) -> list[Aim]:
    ours = _p50(found, 100, "tidemill")
    bare = _p50(found, 100, "floor, fdatasync")
    what = "acks=all p50 of librdkafka, 100 partitions to 1"
    syncs = "the same at 100 partitions, tidemill to a server that only syncs"
    return [
        Aim(what, ours / _p50(found, 1, "tidemill"), 1.3, "x", at_most=True),
        Aim(syncs, ours / bare, 1.3, "x", at_most=True),
    ]


def _together_aims(found: Found) -> list[Aim]:
    more = _p50(found, 100, "tidemill") / _p50(found, 1, "tidemill")
    return [Aim("acks=all p50 of one request, 100 partitions to 1", more, 1.3, "x", at_most=True)]


def _crowd_aims(found: Found) -> list[Aim]:
    ours = _p50(found, 12, "tidemill")
    return [Aim("50 producers x 20/s, acks=all, p50", ours, 1.5, "ms", at_most=True)]


# --- the sections --------------------------------------------------------------------------------

_ACKS: tuple[Literal["1", "all"], ...] = ("1", "all")
_SOCKETS: tuple[Client, ...] = ("raw", "librdkafka")
_PROGRAMS: tuple[Client, ...] = ("librdkafka", "Java")


def _both(case: Case) -> list[Case]:
    """Return the case with acks 1 and all."""
    return [dataclasses.replace(case, acks=acks) for acks in _ACKS]


THROUGHPUT = Spec(
    "Throughput, pre-encoded batches",
    [
        case
        for size, batch, partitions in itertools.product(
            (100, 1024, 10_240), (65_536, 1_000_000), (1, 16)
        )
        for case in _both(
            Case(
                *("raw", "bulk", size, partitions),
                batch_bytes=batch,
                is_long=size == 100,
            )
        )
    ],
    ("produce MB/s", "consume MB/s", "CPU ms/MB"),
    "One connection, 8 requests unanswered at most, fetches of 1 MiB per partition. Raw: the same "
    "bytes from a socket to a file and back; with acks all it answers after fdatasync. Checked: "
    "the same server, which also computes the CRC and, with acks 1, syncs the files every 50 ms, "
    "as a broker must. Apache Kafka answers acks all without any sync.",
    beside=("raw", "checked"),
    base="raw",
    by=("produce MB/s", "consume MB/s"),
    aims=_throughput_aims,
)
LIBRDKAFKA = Spec(
    "Throughput, librdkafka",
    [
        case
        for size, partitions in itertools.product((100, 1024, 10_240), (1, 16))
        for case in _both(Case("librdkafka", "bulk", size, partitions, is_long=size != 1024))
    ],
    ("produce MB/s", "consume MB/s", "CPU ms/MB", "client CPU µs/record"),
    "confluent-kafka with its defaults (batches of up to 1 MB, linger 5 ms), one producer, one "
    "consumer without a group, in a process of its own; it creates an object per record, which is "
    "the limit for 100 B. Raw: the baseline with as many bytes in batches of 64 KB.",
    beside=("raw",),
    base="kafka",
    by=("produce MB/s", "consume MB/s"),
)
LATENCY = Spec(
    "Latency of one synchronous producer, acks=all",
    [
        Case(client, "rounds", size, is_long=size == 100)
        for size, client in itertools.product((100, 1024), _SOCKETS)
    ],
    (*LATENCIES, "CPU µs/record"),
    "A record, its acknowledgement, the next record. Bare: write and fdatasync of the same batch. "
    f"{NO_SYNC} With flush.messages=1 it promises what tidemill does.",
    beside=("bare", "flush"),
    base="bare sync",
    by=("p50 ms",),
    aims=_latency_aims,
)
STEADY = Spec(
    "Latency of a steady load, acks=all",
    [Case("raw", "rate", 10_240, count, rate=1500, seconds=10) for count in (1, 12)],
    (*LATENCIES, "max ms", "CPU µs/record"),
    "Batches of one record, one connection, at a fixed rate, whether earlier ones were answered or "
    "not. What a server does behind its answers shows in the upper percentiles: the syncs of "
    f"segments behind the journal, the kernel's write-back. {NO_SYNC}",
    beside=("flush",),
)
SPREAD = Spec(
    "acks=all over many partitions",
    [
        Case("librdkafka", "rounds", 200, count, together=100, is_long=count > 100)
        for count in (1, 12, 100, 1000)
    ],
    ("p50 ms", "p10 ms", "p99 ms", "client CPU µs/record", "disk bytes/byte"),
    f"One librdkafka producer, linger 0: 100 records of 200 B over the partitions, then flush. It "
    f"sends a request for each partition, which costs the client more than the server. {FLOOR}",
    beside=("flush", "floors"),
    to_first="p50 ms",
    aims=_spread_aims,
)
TOGETHER = Spec(
    "acks=all, one request to many partitions",
    [
        Case("raw", "rounds", 200, count, batch=100 // count, everywhere=True, rounds=500)
        for count in (1, 10, 100)
    ],
    ("p50 ms", "p10 ms", "p99 ms", "CPU µs/request"),
    "One request with 100 records of 200 B over the partitions, as Java's producer sends them.",
    beside=("flush", "floors"),
    to_first="p50 ms",
    aims=_together_aims,
)
CROWD = Spec(
    "50 producers x 20 records/s, acks=all",
    [Case("raw", "rate", 200, 12, connections=50, rate=20, seconds=10)],
    ("p50 ms", "p99 ms", "CPU µs/record"),
    f"One record of 200 B every 50 ms on each of 50 connections, to 12 partitions. {NO_SYNC}",
    beside=("flush",),
    aims=_crowd_aims,
)
_SMALL_NOTE = (
    "confluent-kafka, linger 0, records of 100 B. Latencies are from the call to its callback; "
    "above 1,000 records/s they include a wait of about 1 ms for the client's program. records/s: "
    "acknowledged within the time of the load. Client: µs/record of all client processes. Bare: "
    f"write and fdatasync of one record. {FLOOR} {NO_SYNC} With it, only light loads are measured."
)


def _producers(connections: int, rate: float, acks: Literal["1", "all"] = "all") -> Case:
    """Return a load of librdkafka that many producers, or a fast one, send."""
    return Case("librdkafka", "rate", 100, 12, acks, connections=connections, rate=rate)


PRODUCERS = Spec(
    "Many small producers",
    [_producers(50, 20), _producers(500, 2), _producers(50, 400), _producers(500, 40)],
    ("records/s", *LATENCIES, *PRODUCE_CPU),
    f"{_SMALL_NOTE} 20,000 records/s are an overload.",
    beside=("bare", "flush", "floors"),
)
FLOODS = Spec(
    "Floods of single-record requests",
    [
        _producers(1, 5_000),
        _producers(1, 15_000, "1"),
        _producers(1, 15_000),
        _producers(1, 50_000),
    ],
    ("records/s", *LATENCIES, *PRODUCE_CPU),
    f"{_SMALL_NOTE} 50,000 records/s are an overload.",
    beside=("bare", "flush", "floors"),
)
_JAVA_NOTE = (
    "kafka-producer-perf-test with its defaults (batches of 16 KB, linger 5 ms, idempotent), after "
    "a warm-up in the same process. Its records have random letters and are all alike, so they "
    "compress well. CPU and bytes written to disks are the server's, the warm-up included. "
    "Client: processor time of the tool for each record, its start included. Idle: the part of "
    "the processors' time in which nothing was to be done, or only the disk was waited for. Raw: "
    "the baseline with as many bytes in batches of 16 KB."
)
_JAVA_FIGURES = ("MB/s", *LATENCIES, *PRODUCE_CPU)


def _java(size: int, partitions: int, acks: Literal["1", "all"], codec: str = "none") -> Case:
    is_long = partitions > 100
    return Case("Java", "bulk", size, partitions, acks, codec=codec, is_long=is_long)


JAVA = Spec(
    "Java's producer",
    [
        *(_java(1000, 12, "all", codec) for codec in ("none", "lz4", "zstd")),
        *(_java(1000, 1, "all"), _java(1000, 12, "1"), _java(100, 12, "1")),
        _java(10_000, 12, "all"),
    ],
    _JAVA_FIGURES,
    _JAVA_NOTE,
    beside=("flush", "raw"),
    by=("MB/s",),
)
PARTITIONS = dataclasses.replace(
    JAVA,
    title="Java's producer, acks=all, many partitions",
    cases=[_java(1000, count, "all") for count in (1, 12, 100, 1000)],
)
JAVA_FLOOR = dataclasses.replace(
    JAVA,
    title="Java's producer, acks=all, beside the floor",
    cases=[_java(10_000, count, "all") for count in (1, 12)],
    beside=("flush", "floors", "raw"),
)
CONSUME = Spec(
    "Consumers",
    [
        Case(client, "read", size, partitions, is_long=size == 100)
        for size, partitions, client in itertools.product((1024, 100), (1, 12), _PROGRAMS)
    ],
    ("MB/s", "CPU ms/MB"),
    "One consumer reads a topic that was just written in batches of 64 KB, from the page cache. "
    "CPU: of the server. Raw: the baseline, which reads files into memory and sends them.",
    beside=("raw",),
    by=("MB/s",),
)
BRIEF = Spec(
    "Beside Apache Kafka",
    [
        *(_producers(50, 20), _producers(50, 400), _producers(1, 15_000, "1")),
        _producers(1, 15_000),
        *(Case("librdkafka", "rounds", 100, count, together=100) for count in (1, 100)),
        Case("librdkafka", "bulk", 100, 12, "1"),
        Case("librdkafka", "read", 1024, 12),
        *(_java(1000, 12, "all"), _java(10_000, 1, "all"), _java(10_000, 12, "all")),
        _java(100, 12, "1"),
        Case("Java", "read", 1024, 12),
    ],
    ("records/s", "MB/s", "p50 ms", "p99 ms", "CPU µs/record"),
    "Java: Apache Kafka's perf tools with their defaults. librdkafka: confluent-kafka in a process "
    "of its own. Apache Kafka does not sync before it answers.",
    by=("records/s", "p50 ms", "p99 ms", "CPU µs/record"),
)
TRANSACTIONS = Spec(
    "Transactions",
    [Case("librdkafka", "transact", 1024, each=each) for each in (0, 10_000, 100)],
    ("records/s", "p50 ms", "p99 ms"),
    "confluent-kafka, enable.idempotence, acks all, one partition, 1 KB records; each transaction "
    "begins when the one before is committed. p50 and p99 are those of a commit, which begins when "
    "its records are delivered. tidemill answers when decision and markers are on disk; Apache "
    "Kafka when the decision is written, without a sync. The records are read with read_committed.",
    by=("records/s",),
    to_first="records/s",
)


def _request(
    together: int,
    partitions: int,
    acks: Literal["1", "all"],
    rounds: int,
    size: int = 100,
    batch: int = 1,
) -> Case:
    return Case(*("raw", "rounds", size, partitions, acks, batch), together=together, rounds=rounds)


REQUESTS = Spec(
    "Processor time per request",
    [
        *(_request(1, 1, "1", 10_000), _request(1, 1, "all", 5_000)),
        *(_request(32, 12, "1", 1_250), _request(32, 12, "all", 625)),
        _request(100, 100, "all", 200),
        *(_request(5, 12, "1", 2_000, 1000, 16), _request(5, 12, "all", 1_200, 1000, 16)),
        *(_request(5, 12, "1", 2_000, 10_000), _request(5, 12, "all", 1_200, 10_000)),
        _request(5, 12, "all", 400, 10_000, 10),
        *(_request(2, 12, "1", 200, 10_000, 99), _request(2, 12, "all", 100, 10_000, 99)),
        Case("raw", "fetch", 100, rounds=10_000),
        Case("raw", "fetch", 1000, batch=16, rounds=10_000),
    ],
    ("CPU µs/request", "p50 ms", "p99 ms"),
    "CPU: user and system time of the broker. p50: of a round, from the first byte of the requests "
    "that are sent together to the last response. A broker finds those at the same time, as "
    "librdkafka and Java's producer send them. With rules, the broker asks about each topic.",
    base="tidemill",
    by=("CPU µs/request",),
    beside=("rules",),
)
REGRESSION = (
    Spec(
        "This checkout against another one: throughput",
        [
            *(
                case
                for size, partitions in itertools.product((100, 1024), (1, 16))
                for case in _both(Case("raw", "bulk", size, partitions))
            ),
            *_both(Case("librdkafka", "bulk", 100, 4, records=500_000)),
        ],
        ("produce MB/s", "consume MB/s", "CPU ms/MB"),
        needs_against=True,
    ),
    dataclasses.replace(
        LATENCY,
        title="This checkout against another one: durable latency",
        cases=[Case("raw", "rounds", 1024)],
        needs_against=True,
    ),
)

SPECS: Mapping[str, Sequence[Spec]] = {
    "throughput": [THROUGHPUT],
    "librdkafka": [LIBRDKAFKA],
    "latency": [LATENCY],
    "latency-steady": [STEADY],
    "journal": [SPREAD, TOGETHER, CROWD],
    "clients-brief": [BRIEF],
    "clients-producers": [PRODUCERS],
    "clients-floods": [FLOODS],
    "clients-java": [JAVA],
    "clients-java-floor": [JAVA_FLOOR],
    "clients-partitions": [PARTITIONS],
    "clients-consume": [CONSUME],
    "transactions": [TRANSACTIONS],
    "requests": [REQUESTS],
    "regression": REGRESSION,
}
"""Name of a section -> its tables."""
SECTIONS: Mapping[str, Callable[[Run], Section]] = {
    name: partial(measure, name, specs=specs) for name, specs in SPECS.items()
}
