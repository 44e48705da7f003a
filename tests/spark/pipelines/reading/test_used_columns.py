"""Which columns of a stream a query uses; the others need no values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.spark import Pipeline, TopicSink, sliding, stream_stream, tumbling
from tidemill.spark.pipelines.inputs import Builder
from tidemill.spark.pipelines.reading.used_columns import used_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WIDE = ", ".join(f"c{number} STRING" for number in range(30))
ALL = {"id", "customer", "n", "at"}

Query = Callable[[Any, Any], Any] | str


def build(spark: SparkSession, *queries: Query) -> tuple[Builder, list[Any]]:
    p = Pipeline("p")
    p.stream("orders", schema="id STRING, customer STRING, n INT, at TIMESTAMP", event_time="at")
    p.stream(
        "payments",
        schema=f"order STRING, amount DOUBLE, paid TIMESTAMP, {WIDE}",
        event_time="paid",
        watermark="1 hour",
    )
    for number, each in enumerate(queries):
        if isinstance(each, str):
            p.sql(f"q{number}", each, sink=TopicSink("t"))
        else:
            _declare(p, f"q{number}", each)
    kafka = {"bootstrap.servers": "localhost:1"}
    builder = Builder(spark.newSession(), p, kafka, is_local=True)
    return builder, [builder.build(each).df for each in p.queries]


def _declare(p: Pipeline, name: str, make: Callable[[Any, Any], Any]) -> None:
    def query(orders: Any, payments: Any) -> Any:
        return make(orders, payments)

    query.__name__ = name
    p.query(sink=TopicSink(name))(query)


def used(spark: SparkSession, query: Query) -> dict[str, set[str]] | None:
    """Return the used columns of each topic, without the time of the record."""
    _, [df] = build(spark, query)
    found = used_columns(df, "subscribe")
    if found is None:
        return None
    return {name: set(columns) - {"_timestamp"} for name, columns in found.items()}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (lambda orders, _: orders.df.select("id"), {"id"}),
        (lambda orders, _: orders.df.where("n > 1").select("id"), {"id", "n"}),
        (lambda orders, _: orders.df.select("id", "n").drop("n"), {"id"}),
        (lambda orders, _: orders.df.selectExpr("upper(customer) AS c", "n").select("c"),
         {"customer"}),
        (lambda orders, _: orders.df.select("*"), ALL),
        (lambda orders, _: orders.df.groupBy("customer").count(), {"customer"}),
        (lambda orders, _: orders.df.groupBy().count(), set()),
        (lambda orders, _: orders.df.groupBy(sliding("at", "2 hours", "1 hour")).agg({"n": "max"}),
         {"at", "n"}),
        (lambda orders, _: orders.df.dropDuplicates(["id"]).select("customer"),
         {"id", "customer"}),
        (lambda orders, _: orders.df.select("id").union(orders.df.select("customer")),
         {"id", "customer"}),
        (lambda orders, _: orders.df.select("id").limit(3), {"id"}),
        (lambda orders, _: orders.df.selectExpr("id", "transform(array(n), x -> x + 1) AS m"),
         {"id", "n"}),
        # Operators that are not known use all columns.
        (lambda orders, _: orders.df.mapInArrow(lambda rows: rows, "id STRING").select("id"), ALL),
        (lambda orders, _: orders.df.repartition(2, "n").select("id"), ALL),
        ("SELECT id FROM orders WHERE n > 1", {"id", "n"}),
        ("WITH big AS (SELECT * FROM orders WHERE n > 1) SELECT id FROM big", {"id", "n"}),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", {"customer"}),
    ],
)  # fmt: skip
def test_a_query_uses_what_its_result_depends_on(
    spark: SparkSession, query: Query, expected: set[str]
) -> None:
    assert used(spark, query) == {"orders": expected}


def test_metrics_of_the_user_use_columns(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    def query(orders: Any, _: Any) -> Any:
        return orders.df.observe("mine", f.max("n").alias("most")).select("id")

    assert used(spark, query) == {"orders": {"id", "n"}}


def test_a_long_expression_uses_all_of_its_columns(spark: SparkSession) -> None:
    """Spark shortens the text of such an expression."""

    def query(_: Any, payments: Any) -> Any:
        from pyspark.sql import functions as f

        return payments.df.select(f.struct(*[f"c{number}" for number in range(30)]).alias("all"))

    columns = {f"c{number}" for number in range(30)}
    assert used(spark, query) == {"payments": {"paid", *columns}}  # and the watermark's


def test_a_join_uses_its_condition(spark: SparkSession) -> None:
    def query(orders: Any, payments: Any) -> Any:
        joined = stream_stream(
            orders.df.withWatermark("at", "1 hour"),
            payments.df,
            on={"id": "order"},
            within=("0 seconds", "1 hour"),
        )
        return joined.groupBy(tumbling("at", "1 hour"), "customer").agg({"amount": "sum"})

    assert used(spark, query) == {
        "orders": {"id", "at", "customer"},
        "payments": {"order", "paid", "amount"},
    }


def test_a_stream_that_is_used_twice_has_the_columns_of_both(spark: SparkSession) -> None:
    def query(orders: Any, _: Any) -> Any:
        one = orders.df.select("id", "customer").alias("one")
        other = orders.df.select("id", "n").alias("other")
        return one.join(other, one["id"] == other["id"]).select("customer", "n")

    assert used(spark, query) == {"orders": {"id", "customer", "n"}}


def test_nothing_is_said_about_a_query_with_a_subquery(spark: SparkSession) -> None:
    assert used(spark, "SELECT id FROM orders WHERE n IN (SELECT id FROM range(3))") is None


def limited_to(spark: SparkSession, *queries: Query) -> set[str] | None:
    """Return the columns of the stream orders that the source is told; None means all."""
    builder, results = build(spark, *queries)
    builder.source.limit_columns(results)
    found = used_columns(results[0], "columns.used")
    assert found is not None
    [path] = map(Path, found)  # it is removed with the builder
    return set(json.loads(path.read_text())) - {"_timestamp"} if path.exists() else None


def test_a_stream_of_several_queries_has_the_columns_of_all(spark: SparkSession) -> None:
    found = limited_to(
        spark,
        lambda orders, _: orders.df.select("id"),
        lambda orders, payments: payments.df.select("amount"),
        lambda orders, _: orders.df.groupBy("customer").count(),
    )
    assert found == {"id", "customer"}


def test_all_columns_have_values_if_one_query_says_nothing(spark: SparkSession) -> None:
    found = limited_to(
        spark,
        lambda orders, _: orders.df.select("id"),
        "SELECT id FROM orders WHERE n IN (SELECT id FROM range(3))",
    )
    assert found is None
