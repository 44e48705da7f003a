"""Windows in Spark equal a few lines of plain Python: in batches, and in streams of every mode."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.spark.windows.window_model import Event, Group, Stream, grouped
from tests.support.effort import examples
from tidemill import spark as windows
from tidemill.spark.errors import OutputModeError, WindowError
from tidemill.spark.windows.functions import WindowColumn, hopping, session, sliding, tumbling
from tidemill.spark.windows.spec import Kind
from tidemill.spark.windows.sql import rewrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECOND = 1_000_000
HOUR = 3600 * SECOND


def us(micros: int) -> timedelta:
    return timedelta(microseconds=micros)


@pytest.fixture(scope="module")
def own(spark: SparkSession) -> SparkSession:
    """A session of this module's own: settings and views stay in it."""
    made = spark.newSession()
    made.conf.set("spark.sql.shuffle.partitions", "1")
    return made


def events_frame(spark: SparkSession, events: list[Event]) -> DataFrame:
    from pyspark.sql import functions as f

    made = spark.createDataFrame(events, "key string, us bigint")
    return made.select("key", f.timestamp_micros("us").alias("ts"))


def rows_of(frame: DataFrame, kind: str) -> DataFrame:
    """A grouped count with its window as numbers, named."""
    return frame.selectExpr(
        f"'{kind}' AS kind", "key", "unix_micros(window.start)", "unix_micros(window.end)", "count"
    )


def by_kind(rows: list[Any]) -> dict[str, Counter[Group]]:
    found: dict[str, Counter[Group]] = {}
    for kind, key, start, end, count in rows:
        assert (key, start, end) not in found.setdefault(kind, Counter()), "a group came twice"
        found[kind][key, start, end] = count
    return found


def union(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionAll(b), frames)


# --- batch ---------------------------------------------------------------------------------------

ERAS = [
    0,
    -5_000_000_000 * SECOND,  # 1811, when zones were whole minutes and seconds off
    -1,
    1_772_953_200 * SECOND,  # 2026-03-08T07:00Z: New York's clocks go forward
    1_793_512_800 * SECOND,  # 2026-11-01T06:00Z: and back
    1_774_746_000 * SECOND,  # 2026-03-29T01:00Z: London
    1_775_314_800 * SECOND,  # 2026-04-04T15:00Z: Lord Howe, by half an hour
]
ZONES = ["UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe"]
STEPS = st.sampled_from([1, 7, 999_983, SECOND, 60 * SECOND, HOUR + 1, 24 * HOUR])


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, dict[str, WindowColumn], list[Event]]:
    """A time zone, a window of each kind, and events near their bounds, some of them twice."""
    step = draw(STEPS)
    over = step + draw(st.integers(0, 4 * step))
    under = draw(st.integers((step + 1) // 2, step))
    start = us(draw(st.integers(-3 * step, 3 * step)))
    windows = {
        "tumbling": tumbling("ts", us(step), start=start),
        "sliding": sliding("ts", us(over), us(step), start=start),
        "hopping": hopping("ts", us(under), us(step), start=start),
        "session": session("ts", us(step)),
    }
    near = st.integers(-6, 6).map(lambda i: i * step)
    bound = st.sampled_from([0, 1, -1, under, under - 1, over - 1, -over])
    delta = st.one_of(st.tuples(near, bound).map(sum), st.integers(-6 * step, 6 * step))
    eras = draw(st.lists(st.sampled_from(ERAS), min_size=1, max_size=2))
    time = st.tuples(st.sampled_from(eras), delta).map(sum)
    events = draw(st.lists(st.tuples(st.sampled_from("ab"), time), min_size=40, max_size=120))
    return draw(st.sampled_from(ZONES)), windows, events + events[::3]


@settings(max_examples=examples(3), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_a_batch_equals_the_model(
    own: SparkSession, case: tuple[str, dict[str, WindowColumn], list[Event]]
) -> None:
    zone, made, events = case
    own.conf.set("spark.sql.session.timeZone", zone)
    frame = events_frame(own, events)
    results = [
        rows_of(windows.group_by(frame, window, "key").count(), kind)
        for kind, window in made.items()
    ]
    found = by_kind(union(results).collect())
    for kind, window in made.items():
        assert found.get(kind, Counter()) == grouped(window.spec, events), window


def test_an_event_without_a_time_belongs_to_no_window(own: SparkSession) -> None:
    frame = own.sql("SELECT 'a' AS key, CAST(NULL AS TIMESTAMP) AS ts")
    for window in FOUR.values():
        assert windows.group_by(frame, window, "key").count().count() == 0


def test_windows_without_gaps_are_columns(own: SparkSession) -> None:
    frame = events_frame(own, [("a", 0), ("a", 7 * SECOND), ("b", 9 * SECOND)])
    for window in (
        tumbling("ts", "6 seconds"),
        sliding(frame.ts, "6 seconds", "3 seconds"),
        hopping(frame["ts"], "6 seconds", "6 seconds"),
        session("ts", "6 seconds"),
    ):
        alone = frame.groupBy(window, "key").count()
        assert alone.columns == ["window", "key", "count"]
        assert sorted(alone.collect()) == sorted(
            windows.group_by(frame, window, "key").count().collect()
        )


def test_a_window_with_gaps_alone_in_group_by_says_what_to_write(own: SparkSession) -> None:
    frame = events_frame(own, [("a", 0)])
    gaps = hopping("ts", "6 minutes", "10 minutes")
    assert "hopping" in repr(gaps)
    with pytest.raises(WindowError, match="can't drop the events") as refused:
        frame.groupBy(gaps, "key")
    assert "group_by(df, hopping(...)" in refused.value.hint
    with pytest.raises(WindowError, match="is not a window"):
        windows.group_by(frame, "key", gaps)  # type: ignore[arg-type]
    with pytest.raises(WindowError, match="key is a string"):
        windows.group_by(frame, hopping("key", "6 minutes", "10 minutes"))


def test_a_window_of_windows_and_a_column_of_the_same_name(own: SparkSession) -> None:
    frame = events_frame(own, [("a", s * SECOND) for s in (0, 4, 5, 11, 21)])
    inner = windows.group_by(frame, tumbling("ts", "5 seconds")).count()
    outer = windows.group_by(inner, hopping("window", "6 seconds", "10 seconds")).sum("count")
    assert outer.columns == ["window", "sum(count)"]
    rows = outer.selectExpr("unix_seconds(window.start)", "`sum(count)`").collect()
    # A window's time is its last microsecond: [5, 10) falls in the gap [6, 10).
    assert sorted(map(tuple, rows)) == [(0, 2), (10, 1), (20, 1)]


# --- SQL -----------------------------------------------------------------------------------------


def test_sql_has_the_same_windows_by_the_same_names(own: SparkSession) -> None:
    events = [("ab"[s % 2], s * SECOND + s % 3 - 1) for s in range(-60, 60, 1)]
    events_frame(own, events).createOrReplaceTempView("events")
    texts = {
        "tumbling('6 seconds')": (
            "SELECT key, tumbling(ts, '6 seconds') AS window, count(*) AS count "
            "FROM events GROUP BY key, 2",
            tumbling("ts", "6 seconds"),
        ),
        "sliding": (
            "SELECT key, Sliding(ts, INTERVAL '7' SECONDS, slide => '3 seconds', "
            "start => '-1 second') AS window, count(*) AS count FROM events GROUP BY ALL",
            sliding("ts", "7 seconds", "3 seconds", "-1 second"),
        ),
        "gaps": (
            "SELECT hopping(ts, '6 seconds', '10 seconds', '3 seconds') AS window, key, "
            "count(*) AS count FROM events GROUP BY 1, key",
            hopping("ts", "6 seconds", "10 seconds", "3 seconds"),
        ),
        "gaps twice": (
            "SELECT key, hopping(e.ts, '6 seconds', '7 seconds') AS w, count(*) AS count "
            "FROM events AS e /* hopping(no, */ WHERE key <> \"hopping(ts, 'x')\" -- tumbling(\n"
            "GROUP BY hopping(e.ts, '6 seconds', '7 seconds'), key HAVING count(*) > 0 OR false "
            "ORDER BY w.start",
            hopping("ts", "6 seconds", "7 seconds"),
        ),
        "gaps in a subquery": (
            "WITH counted AS (SELECT count(*) AS count, key, hopping(ts, '1 second', '2 seconds') "
            "AS window FROM events GROUP BY 2, 3) SELECT * FROM counted",
            hopping("ts", "1 second", "2 seconds"),
        ),
        "session": (
            "SELECT key, session(ts, gap => '2 seconds'), count(*) AS count "
            "FROM events GROUP BY key, session(ts, '2 seconds')",
            session("ts", "2 seconds"),
        ),
    }
    frames = []
    for number, (text, _) in enumerate(texts.values()):
        frame = windows.sql(own, text)
        if "w" in frame.columns:
            frame = frame.withColumnRenamed("w", "window")
        frames.append(rows_of(frame, str(number)))
    found = by_kind(union(frames).collect())
    for number, (text, window) in enumerate(texts.values()):
        assert found[str(number)] == grouped(window.spec, events), text


def test_sql_without_windows_is_left_as_it_is(own: SparkSession) -> None:
    for text in (
        "SELECT 1",
        "SELECT 'tumbling(ts, 1)' AS session -- hopping(ts)",
        "SELECT session FROM `hopping`",
        "SELECT tumbling(ts, FROM",  # Spark tells where it is wrong
        "SELECT `tumbling`(ts)",
    ):
        assert rewrite(own, text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT tumbling(ts) FROM e GROUP BY 1", "size is missing"),
        ("SELECT session(ts, '1 day', '2 days') FROM e GROUP BY 1", "unknown argument"),
        ("SELECT tumbling(ts, '1 day', slide => '1 day') FROM e GROUP BY 1", "unknown argument"),
        ("SELECT tumbling(ts, '1 month') FROM e GROUP BY 1", "has no fixed length"),
        ("SELECT tumbling(ts, size_of(x)) FROM e GROUP BY 1", "is not a literal"),
        ("SELECT sliding(ts, '1 day', '2 days') FROM e GROUP BY 1", "is longer than the size"),
        ("SELECT hopping(ts, '1 day', '2 days') FROM e", "must be used in a SELECT with GROUP BY"),
        ("FROM e |> AGGREGATE count(*) GROUP BY hopping(ts, '1 day', '2 days')", "must be used in"),
        ("SELECT 1 FROM e GROUP BY ROLLUP(hopping(ts, '1 day', '2 days'))", "ROLLUP"),
        ("SELECT tumbling(session(ts, '1 day'), '2 days') FROM e GROUP BY 1", "another window"),
    ],
)
def test_sql_that_can_not_be_is_refused(own: SparkSession, text: str, message: str) -> None:
    with pytest.raises(WindowError, match=message):
        rewrite(own, text)


# --- streams -------------------------------------------------------------------------------------

DELAY = 4
FOUR = {
    "tumbling": tumbling("ts", "7 seconds", start="-1 second"),
    "sliding": sliding("ts", "10 seconds", "4 seconds"),
    "hopping": hopping("ts", "6 seconds", "10 seconds", start="2 seconds"),
    "session": session("ts", "5 seconds"),
}
"""One window of each kind, the third with gaps."""

Feed = Callable[..., "DataFrame"]


@pytest.fixture
def feed(own: SparkSession, tmp_path: Path) -> Feed:
    """Makes a stream of which each list of events is one micro-batch."""
    from pyspark.sql import functions as f

    made = iter(range(100))

    def stream(batches: list[list[Event]], watermark: bool = True) -> DataFrame:
        folder = tmp_path / f"stream{next(made)}"
        folder.mkdir()
        for number, events in enumerate(batches):
            file = folder / f"{number:03}.json"
            file.write_text("".join(json.dumps({"key": k, "us": t}) + "\n" for k, t in events))
            os.utime(file, (number + 1, number + 1))  # the order in which they are read
        frame = (
            own.readStream.schema("key string, us bigint")
            .option("maxFilesPerTrigger", 1)
            .json(str(folder))
            .select("key", f.timestamp_micros("us").alias("ts"))
        )
        return frame.withWatermark("ts", f"{DELAY} seconds") if watermark else frame

    return stream


def run(frame: DataFrame, mode: str) -> tuple[list[dict[str, Counter[Group]]], Any]:
    """Run a stream of ``rows_of`` over all there is: what each batch emitted, and the query."""
    emitted: list[dict[str, Counter[Group]]] = []

    def take(rows: DataFrame, batch: int) -> None:
        assert batch == len(emitted)
        emitted.append(by_kind(rows.collect()))

    query = frame.writeStream.outputMode(mode).foreachBatch(take).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return emitted, query


def state_rows(query: Any) -> list[int]:
    """Rows in the state of each operator after the last batch."""
    ran = [p for p in query.recentProgress if "addBatch" in p["durationMs"]]
    return [int(state["numRowsTotal"]) for state in ran[-1]["stateOperators"]]


def expect(
    emitted: list[dict[str, Counter[Group]]],
    batches: list[list[Event]],
    kinds: list[str],
    mode: str,
) -> list[Stream]:
    """Compare with the model, batch by batch; the batches at the end have no data."""
    models = [Stream(FOUR[kind].spec, mode, DELAY * SECOND) for kind in kinds]
    for number, found in enumerate(emitted):
        events = batches[number] if number < len(batches) else []
        for kind, model in zip(kinds, models, strict=True):
            assert found.get(kind, Counter()) == model.batch(events), (kind, number)
    return models


@st.composite
def streams(draw: st.DrawFn) -> list[list[Event]]:
    """Batches of events with increasing times, with stragglers, repeats, and some before 1970."""
    fraction = st.sampled_from([0, 1, 999_999])
    batches: list[list[Event]] = []
    for number in range(draw(st.integers(3, 5))):
        second = st.integers(number * 9 - 16, number * 9 + 8)
        time = st.tuples(second, fraction).map(lambda t: t[0] * SECOND + t[1])
        event = st.tuples(st.sampled_from("ab"), time)
        batches.append(draw(st.lists(event, min_size=1, max_size=12)))
        if number > 1:
            batches[-1] += batches[-2][::4] + batches[-1][::5]
    return batches


END = [("z", 10_000 * SECOND + 5)]
"""An event that moves the watermark past all windows. It is in a gap of those with gaps."""


@settings(
    max_examples=examples(2),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # each attempt takes seconds
)
@given(batches=streams())
def test_an_append_stream_emits_each_window_once_when_its_end_has_passed(
    feed: Feed, batches: list[list[Event]]
) -> None:
    batches = [*batches, END]
    frame = feed(batches)
    kinds = list(FOUR)
    counted = [rows_of(windows.group_by(frame, FOUR[k], "key").count(), k) for k in kinds]
    both = union(counted)
    windows.check_query(both, "append")
    emitted, query = run(both, "append")
    assert len(emitted) == len(batches) + 1, "the last batch, without data, closes what is open"
    models = expect(emitted, batches, kinds, "append")
    counts = windows.late_records(query)
    assert sorted(counts.operators) == sorted(model.late for model in models)
    # Only the last event's own windows are open; it is in a gap.
    assert sorted(state_rows(query)) == sorted(len(model.state) for model in models)
    assert not models[kinds.index("hopping")].state


BATCHES: list[list[Event]] = [
    [("a", s * SECOND) for s in (-30, 1, 3, 7, 9, 11, 12)],
    [("a", 15 * SECOND), ("b", 18 * SECOND), ("b", 20 * SECOND), ("b", 20 * SECOND)],
    [("a", 5 * SECOND), ("a", 16 * SECOND), ("b", 33 * SECOND)],
    [("a", 2 * SECOND), ("a", 34 * SECOND), ("b", -1)],
]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("hopping", "update"),
        ("sliding", "update"),
        ("hopping", "complete"),
        ("session", "complete"),
    ],
)
def test_a_stream_in_another_mode_equals_the_model(feed: Feed, kind: str, mode: str) -> None:
    counted = rows_of(windows.group_by(feed(BATCHES), FOUR[kind], "key").count(), kind)
    windows.check_query(counted, mode)
    emitted, query = run(counted, mode)
    (model,) = expect(emitted, BATCHES, [kind], mode)
    assert windows.late_records(query).rows == model.late
    assert state_rows(query) == [len(model.state)]
    if (kind, mode) != ("hopping", "complete"):
        assert model.late > 0


def test_gaps_in_sql_are_right_in_a_stream_and_never_reach_the_state(
    own: SparkSession, feed: Feed
) -> None:
    feed(BATCHES).createOrReplaceTempView("stream")
    text = """SELECT hopping(ts, '6 seconds', '10 seconds', start => '2 seconds') AS window,
              key, count(*) AS count FROM stream GROUP BY 1, key"""
    emitted, query = run(rows_of(windows.sql(own, text), "hopping"), "append")
    (model,) = expect(emitted, BATCHES, ["hopping"], "append")
    assert windows.late_records(query).rows == model.late > 0
    assert state_rows(query) == [len(model.state)]


# --- the check before the start ------------------------------------------------------------------


def test_what_spark_would_refuse_is_refused_before_the_start(own: SparkSession, feed: Feed) -> None:
    frame, unmarked = feed([END]), feed([END], watermark=False)
    for window in FOUR.values():
        counted = windows.group_by(frame, window, "key").count()
        assert windows.check_query(counted, "append") == ()
        assert "keeps every" in windows.check_query(counted, "complete")[0]
        with pytest.raises(OutputModeError, match="no window is ever final"):
            windows.check_query(windows.group_by(unmarked, window).count(), "append")
        if window.spec.kind is Kind.SESSION:
            with pytest.raises(OutputModeError, match="does not support session windows"):
                windows.check_query(counted, "update")
        else:
            assert windows.check_query(counted, "update") == ()
            told = windows.check_query(windows.group_by(unmarked, window).count(), "update")
            assert "no window leaves the state" in told[0]
        twice = windows.group_by(counted, tumbling("window", "1 hour")).sum("count")
        assert windows.check_query(twice, "append") == ()
        with pytest.raises(OutputModeError, match="2 aggregations in a row"):
            windows.check_query(twice, "complete")


def test_the_check_asks_spark_about_all_else(own: SparkSession, feed: Feed) -> None:
    frame = feed([END])
    with pytest.raises(OutputModeError, match="Spark refuses complete mode: ") as refused:
        windows.check_query(frame, "complete")
    assert "\n" not in str(refused.value)
    with pytest.raises(OutputModeError, match="Spark refuses append mode"):
        windows.check_query(frame.groupBy("key").count(), "append")
    with pytest.raises(OutputModeError, match="invalid output mode"):
        windows.check_query(frame, "upsert")
    assert windows.check_query(frame, "append") == ()
    assert windows.check_query(frame.groupBy("key").count(), "update") == ()
    assert windows.check_query(events_frame(own, [("a", 1)]), "complete") == ()
