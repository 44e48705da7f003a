"""Fingerprints of the first release are converted, so its checkpoints can be continued.

``fingerprints.json`` was written with that release and Spark 4.3.0. A change of an expression or of
the name of a function in a Python worker would change the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.spark import (
    Pipeline,
    TopicSink,
    enrich,
    enrich_as_of,
    group_by,
    hopping,
    join_tables,
    session,
    stream_stream,
    tumbling,
)
from tidemill.spark.errors import PipelineError
from tidemill.spark.pipelines.checkpoint import Checkpoint, Fingerprint
from tidemill.spark.pipelines.earlier_fingerprints import converted
from tidemill.spark.pipelines.fingerprint import fingerprint_of
from tidemill.spark.pipelines.inputs import Builder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STORED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("fingerprints.json").read_text()
)


def enriched(orders: Any, customers: Any) -> Any:
    joined = enrich(orders.df, customers, "customer")
    return joined.groupBy(tumbling("at", "1 hour"), "city").count()


def enriched_inner(orders: Any, customers: Any) -> Any:
    joined = enrich(orders.df, customers, "customer", "inner", prefix="c_")
    return joined.groupBy("c_city").count()


def enriched_by_two_columns(orders: Any, two: Any) -> Any:
    joined = enrich(orders.df, two, {"n": "a", "id": "b"}, prefix="c_")
    return joined.groupBy("c_x").count()


def enriched_without_a_use(orders: Any, customers: Any) -> Any:
    return enrich(orders.df, customers, "customer").groupBy("customer").count()


def enriched_twice(orders: Any, customers: Any, two: Any) -> Any:
    once = enrich(orders.df, customers, "customer")
    joined = enrich(once, two, {"n": "a", "id": "b"}, "inner", prefix="t_")
    return joined.groupBy("city", "t_x").count()


def as_of(orders: Any, customers: Any) -> Any:
    joined = enrich_as_of(orders.df, customers, "customer", "at")
    return joined.groupBy(hopping("at", "1 hour", "30 minutes"), "city").count()


def joined_by_spark(orders: Any, customers: Any) -> Any:
    joined = enrich(orders.df, customers, {"id": "city"}, prefix="c_")
    return joined.groupBy("c_customer").count()


def joined_with_versions(orders: Any, customers: Any) -> Any:
    joined = enrich_as_of(orders.df, customers.versions, "customer", "at", prefix="c_")
    return joined.groupBy("c_city").count()


def gaps(orders: Any) -> Any:
    windows = hopping("at", "6 minutes", "10 minutes")
    return group_by(orders.df, windows, "customer").agg({"n": "max"})


def sessions(orders: Any) -> Any:
    return orders.df.groupBy(session("at", "5 minutes"), "customer").count()


def streams(orders: Any, payments: Any) -> Any:
    within = ("1 hour", "2 hours")
    return stream_stream(orders.df, payments.df, on="id", within=within, how="left")


def view(two: Any, three: Any) -> Any:
    return join_tables(two, three, on=["a", "b"], how="left")


def view_on_a_foreign_key(two: Any, customers: Any) -> Any:
    return join_tables(two, customers, foreign_key="customer", right_prefix="c_")


def changes(two: Any) -> Any:
    return two.changes.groupBy("a").count()


GAPS_IN_SQL = (
    "SELECT hopping(at, '6 minutes', '10 minutes') AS window, customer, count(*) FROM orders "
    "GROUP BY 1, 2"
)
TABLE_IN_SQL = "SELECT city, count(*) n FROM orders JOIN customers USING (customer) GROUP BY city"

QUERIES: dict[str, Callable[..., Any] | str] = {
    "enrich": enriched,
    "enrich_inner": enriched_inner,
    "enrich2": enriched_by_two_columns,
    "enrich_unused": enriched_without_a_use,
    "enrich_twice": enriched_twice,
    "as_of": as_of,
    "spark_join": joined_by_spark,
    "versions": joined_with_versions,
    "gaps": gaps,
    "session": sessions,
    "streams": streams,
    "view": view,
    "foreign": view_on_a_foreign_key,
    "sql": GAPS_IN_SQL,
    "sql_table": TABLE_IN_SQL,
    "changes": changes,
}


@pytest.fixture(scope="module")
def shop(spark: SparkSession) -> tuple[Pipeline, Builder]:
    """A pipeline with streams and tables, and its builder; no broker is needed to build."""
    own = spark.newSession()
    p = Pipeline("shop")
    p.stream(
        "orders",
        schema="id STRING, customer STRING, n INT, price DOUBLE, at TIMESTAMP",
        event_time="at",
        watermark="1 hour",
    )
    p.stream(
        "payments",
        schema="id STRING, amount DOUBLE, how STRING, paid TIMESTAMP",
        event_time="paid",
        watermark="1 hour",
    )
    customers = "customer STRING, city STRING"
    p.table("customers", key="customer", schema=customers, keep_versions="1 day")
    two = "a INT, b STRING, customer STRING, x DOUBLE"
    p.table("two", topic="t2", key=["a", "b"], schema=two)
    p.table("three", key=["a", "b"], schema="a INT, b STRING, y DOUBLE")
    return p, Builder(own, p, {"bootstrap.servers": "localhost:1"})


def test_each_stored_fingerprint_has_a_query() -> None:
    assert QUERIES.keys() == STORED.keys()


@pytest.mark.parametrize("name", QUERIES)
def test_a_fingerprint_is_the_converted_text_of_the_first_release(
    shop: tuple[Pipeline, Builder], spark: SparkSession, name: str, tmp_path: Path
) -> None:
    stored = STORED[name]
    if stored["made_by"] != f"1 {spark.version}":
        pytest.skip(f"fingerprints of {stored['made_by']} are not compared with this version")
    state, made_by = converted(stored["state"], stored["made_by"])
    p, builder = shop
    query = QUERIES[name]
    if isinstance(query, str):
        p.sql(name, query, sink=TopicSink(name))
    else:
        p.query(sink=TopicSink(name), name=name)(query)

    made = fingerprint_of(builder.build(p.queries[-1]).df, "append")

    assert made == Fingerprint(tuple(stored["sources"]), stored["mode"], state, made_by)
    checkpoint = Checkpoint(tmp_path, "shop", name)
    (checkpoint.spark_folder / "offsets").mkdir(parents=True)
    (checkpoint.spark_folder / "offsets" / "0").touch()
    identity = {"id": "a", "created_ms": 1, "shape": stored}
    (checkpoint.folder / "identity.json").write_text(json.dumps(identity))
    checkpoint.check(made)
    if made.state:
        with pytest.raises(PipelineError, match="in its state has changed") as refused:
            checkpoint.check(replace(made, state=(*made.state[:-1], "another line")))
        assert f"tidemill pipeline reset shop --query {name}" in refused.value.hint
