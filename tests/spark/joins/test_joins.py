"""Joins of streams and tables, against a few lines of plain Python."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.spark.changelogs import Changelog, rows
from tests.support.effort import examples
from tidemill.errors import DurationError
from tidemill.spark import enrich, enrich_as_of, join_tables, stream_stream
from tidemill.spark.errors import JoinError, WindowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.spark.conftest import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

on_tidemill = pytest.mark.parametrize("broker", ["tidemill"], indirect=True)
MINUTE = 60_000
DAY = 24 * 60


class Queries:
    """Starts queries, and stops them."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.folder = folder
        self.running: list[StreamingQuery] = []

    def send(self, topic: str, *events: dict[str, Any]) -> None:
        self.broker.produce(topic, [json.dumps(event).encode() for event in events])

    def log(self, schema: str, *key: str, topic: str = "") -> Changelog:
        """A new changelog."""
        return Changelog(self.broker, schema, key, topic)

    def events(self, topic: str, schema: str) -> DataFrame:
        """A topic of JSON objects as a stream."""
        read = self.broker.stream(self.spark, topic)
        parsed = read.selectExpr(f"from_json(string(value), '{schema}') AS row")
        return parsed.select("row.*")

    def into_memory(self, frame: DataFrame, mode: str = "append") -> Callable[[], list[Any]]:
        """Start a query; what is returned tells all that it has emitted, in order."""
        name = f"m{uuid.uuid4().hex}"
        writer = frame.writeStream.format("memory").queryName(name).outputMode(mode)
        query = writer.start()
        self.running.append(query)

        def emitted() -> list[Any]:
            query.processAllAvailable()
            return rows(self.spark.table(name))

        return emitted

    def view(
        self, frame: DataFrame, key: tuple[str, ...], into: dict[Any, Any], checkpoint: str = ""
    ) -> StreamingQuery:
        """Keep a view: what a sink that takes ``_deleted`` would hold."""

        def write(df: DataFrame, batch_id: int) -> None:
            found = df.collect()
            keys = [tuple(row[name] for name in key) for row in found]
            assert len(set(keys)) == len(keys), "a row came twice in a batch"
            for name, row in zip(keys, found, strict=True):
                values = row.asDict()
                if values.pop("_deleted"):
                    into.pop(name, None)
                else:
                    into[name] = values

        folder = self.folder / (checkpoint or uuid.uuid4().hex)
        query = (
            frame.writeStream.foreachBatch(write)
            .outputMode("update")
            .option("checkpointLocation", str(folder))
            .start()
        )
        self.running.append(query)
        return query

    def settle(self, *logs: Changelog) -> None:
        """Wait until all queries have read what was written."""
        for log in logs:
            log.flush()
        for query in self.running:
            query.processAllAvailable()

    def stop(self) -> None:
        for query in self.running:
            query.stop()
        self.running.clear()


@pytest.fixture
def queries(spark: SparkSession, broker: Broker, tmp_path: Path) -> Iterator[Queries]:
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "1")
    made = Queries(own, broker, tmp_path)
    yield made
    made.stop()


def at(minute: float) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).isoformat()


# --- stream with stream --------------------------------------------------------------------------

Event = tuple[str, int]
TIMES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=12)


@settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    left=TIMES,
    right=TIMES,
    how=st.sampled_from(["full", "left", "right", "inner"]),
    bounds=st.tuples(st.integers(-5, 9), st.integers(0, 9)).filter(lambda b: sum(b) >= 0),
)
def test_pairs_within_a_bound_equal_the_model(
    spark: SparkSession,
    left: list[Event],
    right: list[Event],
    how: str,
    bounds: tuple[int, int],
) -> None:
    before, after = bounds
    sides = [
        spark.createDataFrame(
            [(i, k, datetime.fromtimestamp(t * 60)) for i, (k, t) in enumerate(side)],
            f"{name} int, k string, {name}_at timestamp",
        ).coalesce(1)
        for name, side in (("l", left), ("r", right))
    ]
    found = stream_stream(
        *sides,
        on="k",
        within=(f"{before} minutes", f"{after} minutes"),
        how=how,
        left_time="l_at",
        right_time="r_at",
    )
    expected: list[tuple[int | None, int | None]] = [
        (i, j)
        for i, (k, t) in enumerate(left)
        for j, (other, u) in enumerate(right)
        if k == other and t - before <= u <= t + after
    ]
    met = {i for i, _ in expected}, {j for _, j in expected}
    if how in ("left", "full"):
        expected += [(i, None) for i in range(len(left)) if i not in met[0]]
    if how in ("right", "full"):
        expected += [(None, j) for j in range(len(right)) if j not in met[1]]
    emitted = found.select("k", "l", "r").collect()
    assert sorted(((i, j) for _, i, j in emitted), key=repr) == sorted(expected, key=repr)
    assert all(k == (right[j] if i is None else left[i])[0] for k, i, j in emitted)


@on_tidemill
def test_events_without_a_partner_come_when_the_watermark_says_so(queries: Queries) -> None:
    topics = queries.broker.topic(), queries.broker.topic()
    left = queries.events(topics[0], "f STRING, gone TIMESTAMP").withWatermark("gone", "1 minute")
    right = queries.events(topics[1], "f STRING, come TIMESTAMP").withWatermark("come", "0 seconds")
    joined = {
        how: stream_stream(left, right, on="f", within=("0 minutes", "10 minutes"), how=how)
        for how in ("inner", "full")
    }
    assert {tuple(each.columns) for each in joined.values()} == {("f", "gone", "come")}
    short = "f", "minute(gone)", "minute(come)"
    inner, full = (queries.into_memory(df.selectExpr(*short)) for df in joined.values())

    queries.send(topics[0], *({"f": f, "gone": at(DAY + 0)} for f in ("flown", "cancelled")))
    queries.send(
        topics[1], {"f": "flown", "come": at(DAY + 10)}, {"f": "ghost", "come": at(DAY + 9)}
    )
    pair, lost, ghost = ("flown", 0, 10), ("cancelled", 0, None), ("ghost", None, 9)
    assert (inner(), full()) == ([pair], [pair])
    # The slower of the two watermarks: 11 - 1, when an arrival at 10 may still come.
    queries.send(topics[0], {"f": "x", "gone": at(DAY + 11)})
    queries.send(topics[1], {"f": "x", "come": at(DAY + 30)})
    assert full() == sorted([pair, ghost], key=repr)
    queries.send(topics[0], {"f": "y", "gone": at(DAY + 12.1)})
    assert full() == sorted([pair, lost, ghost], key=repr)
    assert inner() == [pair]
    for query in queries.running:  # what can't be joined any more has left the state
        progress = query.lastProgress
        assert progress is not None
        assert progress["stateOperators"][0]["numRowsTotal"] == 3, progress


def test_a_join_of_streams_is_checked_before_it_starts(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("timestamp AS ts", "value AS k")
    good = rate.withWatermark("ts", "1 minute")
    named = good.withColumnRenamed("ts", "other")

    def refused(*args: Any, hint: str = "", **kwargs: Any) -> str:
        with pytest.raises((JoinError, WindowError, DurationError)) as error:
            stream_stream(*args, **{"on": "k", "within": "1 hour"} | kwargs)
        assert hint in error.value.hint
        return str(error.value)

    assert refused(rate, named, hint="withWatermark") == "the left stream has no watermark"
    assert refused(good, rate) == "the right stream has no watermark"
    assert "no watermark on ts" in refused(good, rate, right_time="ts")
    assert "left_time k is bigint" in refused(good, named, left_time="k")
    assert "no column no" in refused(good, named, left_time="no")
    assert "no column no" in refused(good, named, on={"k": "no"}, hint="It has other, k")
    assert "a column ts" in refused(good, good, hint='right_prefix="other_"')
    assert "invalid join how='outer'" in refused(
        good, named, how="outer", hint="inner, left, right, full"
    )
    assert "needs columns" in refused(good, named, on=[])
    assert "ends before it begins" in refused(good, named, within=("-2 hours", "1 hour"))
    assert "invalid within=" in refused(good, named, within=("1 hour",) * 3)
    assert "invalid duration" in refused(good, named, within="soon")
    itself = stream_stream(good, good, on="k", within="1 hour", right_prefix="next_")
    assert itself.columns == ["k", "ts", "next_ts"]


# --- stream with table ---------------------------------------------------------------------------

SEATS = "tail STRING, seats INT"


def test_a_stream_meets_the_table_as_it_is_now(queries: Queries) -> None:
    planes = queries.log(SEATS, "tail")
    crews = queries.log("no INT, day STRING, crew STRING", "day", "no")
    topic = queries.broker.topic(2)
    stream = queries.events(topic, "id INT, plane STRING, day STRING, no INT")
    planes.put({"tail": "a", "seats": 1}, {"tail": "gone", "seats": 9})
    crews.put({"no": 1, "day": "mo", "crew": "x"})
    table = planes.table(queries.spark)
    both = enrich(stream, table, {"plane": "tail"})
    both = enrich(both, crews.table(queries.spark), ["no", "day"], prefix="crew_")
    assert both.columns == ["id", "plane", "day", "no", "seats", "crew_crew"]
    seen = queries.into_memory(both.select("id", "seats", "crew_crew"))
    inner = queries.into_memory(enrich(stream, table, {"plane": "tail"}, "inner").select("id"))
    plain = enrich(stream, table.df, {"plane": "tail"}).select("id", "seats")
    joined = queries.into_memory(plain)
    planes.flush()
    crews.flush()
    event = {"day": "mo", "no": 1}
    queries.send(topic, {"id": 1, "plane": "a", **event}, {"id": 2, "plane": "gone"}, {"id": 3})
    assert seen() == [(1, 1, "x"), (2, 9, None), (3, None, None)]
    assert (inner(), joined()) == ([(1,), (2,)], [(1, 1), (2, 9), (3, None)])
    planes.put({"tail": "a", "seats": 2}, {"tail": "new", "seats": 3})
    planes.delete("gone")
    crews.delete("mo", 1)
    planes.flush()
    crews.flush()
    queries.send(topic, *({"id": i, "plane": p} for i, p in ((4, "a"), (5, "gone"), (6, "new"))))
    queries.send(topic, {"id": 7, **event})
    assert seen()[3:] == [(4, 2, None), (5, None, None), (6, 3, None), (7, None, None)]
    assert inner()[2:] == [(4,), (6,)]
    assert joined()[3:] == [(4, 2), (5, None), (6, 3), (7, None)]


@on_tidemill
def test_a_stream_meets_the_version_of_its_time(queries: Queries) -> None:
    planes = queries.log(SEATS, "tail")
    for minute, seats in ((10, 1), (20, 2), (30, 3)):
        planes.put({"tail": "a", "seats": seats}, at=minute * MINUTE)
    planes.delete("a", at=40 * MINUTE)
    planes.put({"tail": "b", "seats": 9}, at=50 * MINUTE)
    planes.flush()
    topic = queries.broker.topic()
    table = planes.table(queries.spark, keep_versions="1 hour")
    stream = queries.events(topic, "tail STRING, ts TIMESTAMP").withWatermark("ts", "1 minute")

    def ask(**options: Any) -> DataFrame:
        return enrich_as_of(stream, options.pop("table", table), "tail", "ts", **options)

    found = {
        "cached": ask(),
        "inner": ask(how="inner"),
        "joined": ask(table=table.versions),
        "short": ask(keep="15 minutes"),
    }
    short = {name: df.selectExpr("minute(ts)", "seats") for name, df in found.items()}
    emitted = {name: queries.into_memory(df) for name, df in short.items()}
    asked = (9, 10, 19, 20, 30, 39, 40, 59)
    queries.send(topic, *({"tail": "a", "ts": at(minute)} for minute in asked))
    held = [None, 1, 1, 2, 3, 3, None, None]
    right = sorted(zip(asked, held, strict=True), key=repr)
    now = {name: each() for name, each in emitted.items()}
    assert now["cached"] == now["joined"] == right
    assert now["inner"] == [pair for pair in right if pair[1] is not None]
    kept = [None if minute < 30 else seats for minute, seats in right]
    assert now["short"] == [(m, s) for (m, _), s in zip(right, kept, strict=True)]
    # An event that comes late still meets the version of its time, and the watermark is there.
    planes.put({"tail": "a", "seats": 4}, at=55 * MINUTE)
    planes.flush()
    queries.send(topic, {"tail": "a", "ts": at(35)}, {"tail": "a", "ts": at(58)})
    assert {(35, 3), (58, 4)} <= set(emitted["cached"]()) - set(right)
    counted = found["cached"].groupBy("ts", "seats").count()
    assert queries.into_memory(counted)()


@on_tidemill
def test_joins_with_tables_are_checked_before_they_start(queries: Queries) -> None:
    log = queries.log(SEATS, "tail")
    table = log.table(queries.spark)
    rate = queries.spark.readStream.format("rate").load()
    stream = rate.selectExpr("timestamp AS ts", "string(value) AS tail", "value AS n")

    def refused(function: Any, *args: Any, hint: str = "", **kwargs: Any) -> str:
        with pytest.raises(JoinError) as error:
            function(*args, **kwargs)
        assert hint in error.value.hint
        return str(error.value)

    clash = stream.withColumn("seats", stream.n)
    assert "a column seats" in refused(enrich, clash, table, "tail", hint='prefix="other_"')
    assert enrich(clash, table, "tail", prefix="p_").columns[-1] == "p_seats"
    assert "no column no" in refused(enrich, stream, table, "no")
    assert "no column no" in refused(enrich, stream, table, {"n": "no"}, hint="tail, seats")
    assert "invalid join how='full'" in refused(enrich, stream, table, "tail", "full")
    assert "is a stream" in refused(enrich, stream, stream.select("tail"), "tail")
    assert enrich(stream, table, {"n": "seats"}, prefix="p_").columns[-1] == "p_tail"
    of = enrich_as_of
    assert "keeps no versions" in refused(of, stream, table, "tail", "ts", hint="keep_versions")
    assert "n is bigint" in refused(of, stream, table, "tail", "n")
    assert "whose key is tail" in refused(of, stream, table, {"n": "seats"}, "ts", keep="1 day")
    assert "not a TIMESTAMP" in refused(of, stream, table, "tail", "ts", valid_from="seats")
    assert "no column valid_from" in refused(of, stream, table.df, "tail", "ts")

    airline = queries.log("code STRING, tail STRING", "code").table(queries.spark)
    number = queries.log("tail BIGINT, x DOUBLE", "tail").table(queries.spark)
    join = join_tables
    assert "either on or" in refused(join, table, airline)
    assert "either on or" in refused(join, table, airline, on="tail", foreign_key="tail")
    assert "not the key of both" in refused(join, table, airline, on="tail", right_prefix="a_")
    assert "tail is STRING, and tail is BIGINT" in refused(join, table, number, on="tail")
    assert "a column tail" in refused(join, table, airline, foreign_key="seats")
    assert "invalid join how='full'" in refused(join, table, table, on="tail", how="full")
    named = {"right_prefix": "r_"}
    assert "no column no" in refused(join, table, airline, foreign_key="no", **named)
    assert "seats is INT" in refused(join, table, airline, foreign_key="seats", **named)
    assert "as many columns" in refused(join, table, airline, foreign_key=["tail", "x"], **named)
    assert "whose key is code" in refused(
        join, table, airline, foreign_key={"tail": "tail"}, **named
    )
    floats = queries.log("x DOUBLE", "x").table(queries.spark)
    assert "different texts" in refused(join, number, floats, foreign_key="x", **named)


@on_tidemill
def test_columns_may_have_any_name(queries: Queries) -> None:
    name = "a.b max((x * 1.5))"
    key, when = f"{name} key", f"{name} when"
    log = queries.log(f"`{key}` STRING, `{name}` INT", key)
    log.put({key: "k", name: 1}, at=10 * MINUTE)
    log.flush()
    table = log.table(queries.spark, keep_versions="1 day")
    moment = datetime.fromtimestamp(11 * 60)
    stream = queries.spark.createDataFrame([("k", moment, 7)], [key, when, name])
    for df in (
        enrich(stream, table, key, prefix="t "),
        enrich(stream, table.df, key, prefix="t "),
        enrich_as_of(stream, table, key, when, prefix="t "),
        enrich_as_of(stream, table.versions, key, when, prefix="t "),
    ):
        assert [row.asDict() for row in df.collect()] == [
            {key: "k", when: moment, name: 7, f"t {name}": 1}
        ]
    for how in ("inner", "left", "right", "full"):
        pairs = stream_stream(
            stream,
            stream,
            on=key,
            within="1 hour",
            how=how,
            left_time=when,
            right_time=when,
            right_prefix="r ",
        )
        assert [row.asDict() for row in pairs.collect()] == [
            {key: "k", when: moment, name: 7, f"r {when}": moment, f"r {name}": 7}
        ]

    owners = queries.log(f"`{key}` STRING, `{name} of` STRING", key)
    owners.put({key: "k", f"{name} of": "k"})
    owners.flush()
    owner = owners.table(queries.spark)
    views: list[dict[Any, Any]] = [{}, {}]
    frames = (
        join_tables(table, owner, on=key),
        join_tables(owner, table, foreign_key=f"{name} of"),
    )
    for frame, view in zip(frames, views, strict=True):
        queries.view(frame, (key,), view).processAllAvailable()
    assert views == [{("k",): {key: "k", name: 1, f"{name} of": "k"}}] * 2


# --- table with table ----------------------------------------------------------------------------

PLANES = "tail STRING, airline STRING, seats INT"
AIRLINES = "code STRING, name STRING"
LEASES = "tail STRING, lessor STRING"


def joined(
    left: Changelog, right: Changelog, by: str | None, how: str, names: dict[str, str]
) -> dict[Any, Any]:
    """The join of two tables in plain Python."""
    found = {}
    for key, row in left.rows.items():
        other = right.rows.get(key if by is None else (row.get(by),))
        if other is None and how == "inner":
            continue
        full = {name: row.get(name) for name in (c.split()[0] for c in left.schema.split(", "))}
        found[key] = full | {new: (other or {}).get(old) for old, new in names.items()}
    return found


class Views:
    """Four views of changing tables, each kept by a query."""

    def __init__(self, queries: Queries, broker: Broker) -> None:
        self.planes = Changelog(broker, PLANES, ("tail",))
        self.airlines = Changelog(broker, AIRLINES, ("code",))
        self.leases = Changelog(broker, LEASES, ("tail",))
        self.found: dict[tuple[str, str], dict[Any, Any]] = {}
        self.frames: dict[tuple[str, str], DataFrame] = {}
        self.queries = queries
        planes, airlines, leases = (
            log.table(queries.spark) for log in (self.planes, self.airlines, self.leases)
        )
        for how in ("inner", "left"):
            self.frames["key", how] = join_tables(planes, leases, on="tail", how=how)
            self.frames["foreign", how] = join_tables(
                planes, airlines, foreign_key="airline", how=how
            )

    def start(self) -> None:
        for name, frame in self.frames.items():
            into = self.found.setdefault(name, {})
            self.queries.view(frame, ("tail",), into, "-".join(name))

    def settle(self) -> None:
        self.queries.settle(self.planes, self.airlines, self.leases)

    def check(self) -> None:
        for (kind, how), found in self.found.items():
            if kind == "key":
                expected = joined(self.planes, self.leases, None, how, {"lessor": "lessor"})
            else:
                expected = joined(self.planes, self.airlines, "airline", how, {"name": "name"})
            assert found == expected, (kind, how)


@pytest.fixture
def views(queries: Queries, broker: Broker) -> Views:
    return Views(queries, broker)


TAILS, CODES = "abcde", "xyz"
CHANGES = st.one_of(
    st.tuples(st.just("plane"), st.sampled_from(TAILS), st.sampled_from([*CODES, None])),
    st.tuples(st.just("airline"), st.sampled_from(CODES), st.integers(0, 9).map(str)),
    st.tuples(st.just("lease"), st.sampled_from(TAILS), st.integers(0, 9).map(str)),
    st.tuples(st.sampled_from(["no plane", "no lease"]), st.sampled_from(TAILS), st.none()),
    st.tuples(st.just("no airline"), st.sampled_from(CODES), st.none()),
)
BATCHES = st.lists(st.lists(CHANGES, min_size=1, max_size=15), min_size=2, max_size=4)
EVERY_KIND: list[list[tuple[str, str, str | None]]] = [
    [
        *(("plane", tail, code) for tail, code in zip("abcd", ["x", "y", "x", None], strict=True)),
        *(("airline", code, "1") for code in "xy"),
        *(("lease", tail, "1") for tail in "abe"),
    ],
    [("no airline", "x", None), ("no lease", "a", None), ("no plane", "b", None)],
    [("airline", "x", "2"), ("lease", "a", "2"), ("plane", "b", "x"), ("plane", "c", "y")],
]


def apply(views: Views, change: tuple[str, str, str | None], number: int) -> None:
    kind, key, value = change
    if kind == "plane":
        views.planes.put({"tail": key, "airline": value, "seats": number})
    elif kind == "airline":
        views.airlines.put({"code": key, "name": value})
    elif kind == "lease":
        views.leases.put({"tail": key, "lessor": value})
    else:
        logs = {"no plane": views.planes, "no lease": views.leases, "no airline": views.airlines}
        logs[kind].delete(key)


def test_a_view_equals_the_join_of_both_tables_at_any_quiet_moment(
    views: Views, queries: Queries
) -> None:
    views.start()
    count = 0

    # The tables live on from example to example, as a user's do: starting again would cost more
    # than all the changes. Shrinking would find nothing.
    @settings(
        max_examples=examples(2),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @example(batches=EVERY_KIND, settled=[True] * 4)
    @given(batches=BATCHES, settled=st.lists(st.booleans(), min_size=4, max_size=4))
    def run(batches: list[list[Any]], settled: list[bool]) -> None:
        nonlocal count
        for batch, is_settled in zip(batches, settled, strict=False):
            for change in batch:
                count += 1
                apply(views, change, count)
            if is_settled:
                views.settle()
                views.check()
        views.settle()
        views.check()

    run()
    # And the batch join in Spark says the same as the model.
    spark = queries.spark
    planes, airlines = views.planes.table(spark).df, views.airlines.table(spark).df
    batch = planes.join(airlines, planes.airline == airlines.code, "left").drop("code")
    expected = {(row.tail,): row.asDict() for row in batch.collect()}
    assert views.found["foreign", "left"] == expected


@on_tidemill
def test_a_batch_that_is_run_again_changes_nothing(views: Views, queries: Queries) -> None:
    for tail in TAILS:
        views.planes.put({"tail": tail, "airline": "x", "seats": 1})
        views.leases.put({"tail": tail, "lessor": "l"})
    views.airlines.put({"code": "x", "name": "old"}, {"code": "y", "name": "other"})
    views.start()
    views.settle()
    views.planes.put({"tail": "a", "airline": "y", "seats": 2}, {"tail": "a", "airline": "x"})
    views.planes.put({"tail": "b", "airline": "y", "seats": 3})
    views.planes.delete("c")
    views.leases.delete("d")
    views.settle()
    views.check()
    queries.stop()
    for name in views.frames:  # as after a crash before the last batch was noted as done
        commits = queries.folder / "-".join(name) / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)
    views.planes.put({"tail": "c", "airline": "y", "seats": 4})
    views.planes.delete("b")
    views.airlines.delete("x")
    views.start()
    views.settle()
    views.check()
    assert views.found["foreign", "inner"].keys() == {("c",)}


@on_tidemill
def test_tables_of_several_key_columns(queries: Queries) -> None:
    seats = queries.log("no INT, day STRING, gate_no BIGINT, hall STRING", "day", "no")
    gates = queries.log("hall STRING, no BIGINT, open BOOLEAN", "hall", "no")
    bars = queries.log("n INT, d STRING, bar STRING", "n", "d")
    left, right, other = (log.table(queries.spark) for log in (seats, gates, bars))
    foreign = {"gate_no": "no", "hall": "hall"}
    views: list[dict[Any, Any]] = [{}, {}]
    by_gate = join_tables(left, right, foreign_key=foreign, right_prefix="gate_")
    by_key = join_tables(left, other, on={"no": "n", "day": "d"})
    queries.view(by_gate, ("day", "no"), views[0])
    queries.view(by_key, ("day", "no"), views[1])

    seats.put(*[{"no": n, "day": "mo", "gate_no": 7, "hall": "A"} for n in (1, 2)])
    gates.put({"hall": "A", "no": 7, "open": True}, {"hall": "B", "no": 7, "open": False})
    bars.put({"n": 1, "d": "mo", "bar": "milk"})
    queries.settle(seats, gates, bars)
    assert {key: row["gate_open"] for key, row in views[0].items()} == {
        ("mo", 1): True,
        ("mo", 2): True,
    }
    assert {key: row["bar"] for key, row in views[1].items()} == {("mo", 1): "milk"}
    seats.put({"no": 2, "day": "mo", "gate_no": 7, "hall": "B"})
    gates.delete("A", 7)
    bars.put({"n": 2, "d": "mo", "bar": "tea"})
    bars.delete(1, "mo")
    queries.settle(seats, gates, bars)
    assert {key: row["gate_open"] for key, row in views[0].items()} == {("mo", 2): False}
    assert {key: row["bar"] for key, row in views[1].items()} == {("mo", 2): "tea"}


# --- keys that move, keys that are spelt otherwise ------------------------------------------------


@on_tidemill
def test_a_key_that_moved_to_another_partition_is_followed(queries: Queries) -> None:
    topics = [queries.broker.topic(4), queries.broker.topic(4)]
    planes = queries.log(SEATS, "tail", topic=topics[0])
    leases = queries.log("tail STRING, lessor STRING", "tail", topic=topics[1])
    left, right = (log.table(queries.spark) for log in (planes, leases))
    view: dict[Any, Any] = {}
    queries.view(join_tables(left, right, on="tail"), ("tail",), view)
    # Many records of others: the offsets of partition 1 are far ahead of those that come later.
    planes.put(*[{"tail": "x", "seats": n} for n in range(50)], at=1000, partition=1)
    for tail in "abc":
        planes.put({"tail": tail, "seats": 1}, at=1000, partition=1)
        leases.put({"tail": tail, "lessor": "l"})

    def settle() -> dict[str, int]:
        queries.settle(planes, leases)
        now = {row.tail: row.seats for row in left.df.filter("tail != 'x'").collect()}
        assert {key: row["seats"] for (key,), row in view.items()} == now
        return now

    assert settle() == {"a": 1, "b": 1, "c": 1}
    for tail in "abc":
        planes.put({"tail": tail, "seats": 2}, at=3000, partition=3)
    assert settle() == {"a": 2, "b": 2, "c": 2}
    # Of one partition the offsets count, though the clock of the one who writes goes back.
    planes.put({"tail": "a", "seats": 3}, at=2000, partition=3)
    planes.delete("b", at=2000, partition=3)
    planes.put({"tail": "c", "seats": 4}, at=4000, partition=2)  # and between two others
    assert settle() == {"a": 3, "c": 4}
    planes.put({"tail": "a", "seats": 5}, at=5000, partition=0)
    planes.delete("c", at=5000, partition=2)
    assert settle() == {"a": 5}
    planes.delete("a", at=6000, partition=0)
    assert settle() == {}


@on_tidemill
def test_a_key_is_found_however_it_is_written(queries: Queries) -> None:
    gates = queries.log("no INT, hall INT", "no")
    halls = queries.log("hall INT, name STRING", "hall")
    queries.broker.produce(gates.topic, [{"key": b"01", "value": b'{"no": 1, "hall": 7}'}])
    queries.broker.produce(halls.topic, [{"key": b" 07", "value": b'{"hall": 7, "name": "A"}'}])
    left, right = gates.table(queries.spark), halls.table(queries.spark)
    view: dict[Any, Any] = {}
    queries.view(join_tables(left, right, foreign_key="hall", how="left"), ("no",), view)
    topic = queries.broker.topic()
    stream = queries.events(topic, "no INT")
    seen = queries.into_memory(enrich(stream, left, "no"))
    queries.send(topic, {"no": 1})
    assert seen() == [(1, 7)]
    queries.running[0].processAllAvailable()
    assert view == {(1,): {"no": 1, "hall": 7, "name": "A"}}
    queries.broker.produce(halls.topic, [{"key": b"+7", "value": b'{"hall": 7, "name": "B"}'}])
    queries.running[0].processAllAvailable()
    assert view == {(1,): {"no": 1, "hall": 7, "name": "B"}}
    queries.broker.produce(gates.topic, [{"key": b"001", "value": None}])
    queries.running[0].processAllAvailable()
    assert (view, rows(left.df)) == ({}, [])


@on_tidemill
def test_a_view_takes_no_more_changes_per_batch_than_its_limit(queries: Queries) -> None:
    planes = queries.log(SEATS, "tail")
    planes.put(*[{"tail": str(n), "seats": n} for n in range(10)])
    planes.flush()
    table = planes.table(queries.spark, max_offsets_per_trigger=4)
    view: dict[Any, Any] = {}
    joined = join_tables(table, table, on="tail", right_prefix="other_")
    query = queries.view(joined, ("tail",), view)
    query.processAllAvailable()
    assert len(view) == 10
    for progress in query.recentProgress:
        assert all(source["numInputRows"] <= 4 for source in progress["sources"])
