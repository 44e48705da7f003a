"""Fingerprints of queries: the same if a query can continue from its checkpoint, else another."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import Broker
from tidemill.spark import TopicSink
from tidemill.spark.pipelines.checkpoint import Fingerprint
from tidemill.spark.pipelines.declared import Pipeline
from tidemill.spark.pipelines.fingerprint import fingerprint_of
from tidemill.spark.pipelines.inputs import Builder
from tidemill.spark.windows.functions import group_by, hopping, session, sliding, tumbling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ORDERS: Mapping[str, Any] = {
    "schema": "id STRING, customer STRING, n INT, price DOUBLE, at TIMESTAMP",
    "event_time": "at",
    "watermark": "1 hour",
}
PAYMENTS: Mapping[str, Any] = {
    "schema": "id STRING, amount DOUBLE, how STRING, paid TIMESTAMP",
    "event_time": "paid",
    "watermark": "1 hour",
}
CUSTOMERS: Mapping[str, Any] = {"key": "customer", "schema": "customer STRING, city STRING"}
WITHIN = "orders.id = payments.id AND paid BETWEEN at AND at + INTERVAL 1 HOUR"

Query = Callable[..., Any] | str
_numbers = itertools.count()


class Fingerprints:
    """Builds queries over the same three inputs."""

    def __init__(self, spark: SparkSession, bootstrap: str) -> None:
        self._spark = spark
        self._kafka = {"bootstrap.servers": bootstrap}
        self._usual = self._made()

    def _made(
        self,
        changed: Mapping[str, Any] | None = None,
        starting: str | None = None,
        kafka: Mapping[str, str] | None = None,
    ) -> tuple[Pipeline, Builder]:
        p = Pipeline("shop")
        p.stream("orders", **{**ORDERS, **(changed or {})})
        p.stream("payments", **PAYMENTS)
        p.table("customers", **CUSTOMERS)
        return p, Builder(self._spark, p, {**self._kafka, **(kafka or {})}, starting)

    def __call__(
        self,
        query: Query,
        mode: str = "append",
        *,
        reload: bool = False,
        changed: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Fingerprint:
        """Return a query's fingerprint; ``reload`` and other options load its streams again."""
        is_usual = not (reload or changed or options)
        p, builder = self._usual if is_usual else self._made(changed, **options)
        name = f"q{next(_numbers)}"
        if isinstance(query, str):
            p.sql(name, query, sink=TopicSink(name))
        else:
            p.query(sink=TopicSink(name), name=name)(query)
        return fingerprint_of(builder.build(p.queries[-1]).df, mode)


@pytest.fixture(scope="module")
def fingerprint(spark: SparkSession, tidemill_broker: Broker) -> Fingerprints:
    return Fingerprints(spark, tidemill_broker.bootstrap)


def hourly(orders: Any) -> Any:
    from pyspark.sql import functions as f

    kept = orders.df.filter("n > 1")
    return kept.groupBy(tumbling("at", "1 hour"), "customer").agg(f.sum("n").alias("total"))


def joined(orders: Any, payments: Any) -> Any:
    from pyspark.sql import functions as f

    return orders.df.join(payments.df, f.expr(WITHIN)).select("orders.id", "amount")


def deduplicated(orders: Any) -> Any:
    return orders.df.dropDuplicatesWithinWatermark(["id"])


def enriched(orders: Any, customers: Any) -> Any:
    return orders.df.join(customers.df, "customer").groupBy("city").count()


def plain(orders: Any) -> Any:
    return orders.df.filter("n > 1").select("id")


STATEFUL = [hourly, joined, deduplicated, enriched]


def test_what_is_written_is_for_people(fingerprint: Fingerprints) -> None:
    assert fingerprint(hourly).state == (
        "aggregate sum(n) by window, customer",
        "  with window of at: 3600000000 microseconds",
        "  where isnotnull(at)",
        "  where (n > 1)",
        "  topic orders with customer string, n int, at timestamp",
    )
    made = fingerprint(joined)
    assert made.sources == ("topic orders", "topic payments")
    assert made.state[0].startswith("join Inner on ((id (left) = id (right)) AND ")
    assert made.state[1:] == (
        "of id string, at timestamp",
        "of id string, amount double, paid timestamp",
        "  topic orders with id string, at timestamp",
        "  topic payments with id string, amount double, paid timestamp",
    )


@pytest.mark.parametrize("query", STATEFUL, ids=lambda q: q.__name__)
def test_it_is_the_same_in_each_session(fingerprint: Fingerprints, query: Query) -> None:
    """All numbers of columns, plans and watermarks are new; nothing else is."""
    assert fingerprint(query, reload=True) == fingerprint(query)


def test_a_query_without_state_has_none(fingerprint: Fingerprints) -> None:
    made = fingerprint(plain)

    assert made.state == ()
    assert made.sources == ("topic orders",)
    assert fingerprint(lambda orders: orders.df.filter("n > 99").select("n", "price")) == made


def projected(orders: Any) -> Any:
    return hourly(orders).selectExpr("customer AS who", "total * 2 AS twice", "window.start")


def renamed(orders: Any) -> Any:
    from pyspark.sql import functions as f

    kept = orders.df.filter("n > 1")
    return kept.groupBy(tumbling("at", "1 hour"), "customer").agg((f.sum("n") + 1).alias("m"))


def filtered_above(orders: Any) -> Any:
    return hourly(orders).filter("total > 100")


def on(condition: str) -> Any:
    """A condition; Spark must be up."""
    from pyspark.sql import functions as f

    return f.expr(condition)


def aliased(orders: Any) -> Any:
    from pyspark.sql import functions as f

    other = orders.df.alias("o").filter("o.n > 1")
    return other.groupBy(tumbling("o.at", "1 hour"), "o.customer").agg(f.sum("o.n"))


IN_SQL = """WITH kept AS (SELECT at, customer, n FROM orders WHERE n > 1)
SELECT tumbling(at, '1 hour') AS hour, customer, sum(n) AS total FROM kept GROUP BY 1, 2"""

SAME: list[tuple[str, Query, Query]] = [
    ("a projection above", hourly, projected),
    ("names and sums of results", hourly, renamed),
    ("a filter above", hourly, filtered_above),
    ("other names of a stream", hourly, aliased),
    ("the same in SQL", hourly, IN_SQL),
    (
        "columns above a join, of those that are kept",
        joined,
        lambda orders, payments: joined(orders, payments).selectExpr("amount", "id AS order_id"),
    ),
    (
        "columns that pass a deduplication",
        deduplicated,
        lambda orders: deduplicated(orders).select("id", "price"),
    ),
]


@pytest.mark.parametrize(
    ("before", "now"), [pair[1:] for pair in SAME], ids=[name for name, _, _ in SAME]
)
def test_what_does_not_touch_the_state_changes_nothing(
    fingerprint: Fingerprints, before: Query, now: Query
) -> None:
    assert fingerprint(now) == fingerprint(before)


@pytest.mark.parametrize(
    "options",
    [
        {"changed": {"starting": "latest", "max_offsets_per_trigger": 10}},
        {"changed": {"watermark": "2 hours"}},
        {"changed": {"dead_letters": None}},
        {"changed": {"schema": f"{ORDERS['schema']}, unused STRING"}},
        {"starting": "latest"},
        {"kafka": {"fetch.max.bytes": "1000000", "bootstrap.servers": "localhost:1"}},
    ],
    ids=str,
)
def test_how_a_stream_is_read_changes_nothing(
    fingerprint: Fingerprints, options: dict[str, Any]
) -> None:
    assert fingerprint(hourly, **options) == fingerprint(hourly)


def grouped(orders: Any, window: Any, *keys: str, where: str = "n > 1", **agg: str) -> Any:
    from pyspark.sql import functions as f

    calls = [f.expr(text).alias(name) for name, text in (agg or {"total": "sum(n)"}).items()]
    return group_by(orders.df.filter(where), window, *(keys or ("customer",))).agg(*calls)


HOUR = "1 hour"
DIFFERENT: list[tuple[str, Query, Query]] = [
    ("a window's size", hourly, lambda orders: grouped(orders, tumbling("at", "2 hours"))),
    ("a window's start", hourly, lambda orders: grouped(orders, tumbling("at", HOUR, "1 minute"))),
    ("a window's kind", hourly, lambda orders: grouped(orders, session("at", HOUR))),
    (
        "a slide",
        lambda orders: grouped(orders, sliding("at", HOUR, "30 minutes")),
        lambda orders: grouped(orders, sliding("at", HOUR, "20 minutes")),
    ),
    (
        "a hop",
        lambda orders: grouped(orders, hopping("at", "6 minutes", "10 minutes")),
        lambda orders: grouped(orders, hopping("at", "6 minutes", "12 minutes")),
    ),
    (
        "a gap of sessions",
        lambda orders: grouped(orders, session("at", "5 minutes")),
        lambda orders: grouped(orders, session("at", "6 minutes")),
    ),
    ("a key", hourly, lambda orders: grouped(orders, tumbling("at", HOUR), "id")),
    (
        "one more key",
        hourly,
        lambda orders: grouped(orders, tumbling("at", HOUR), "customer", "id"),
    ),
    ("an aggregate", hourly, lambda orders: grouped(orders, tumbling("at", HOUR), x="max(n)")),
    (
        "the order of aggregates",
        lambda orders: grouped(orders, tumbling("at", HOUR), a="sum(n)", b="sum(price)"),
        lambda orders: grouped(orders, tumbling("at", HOUR), b="sum(price)", a="sum(n)"),
    ),
    ("a filter below", hourly, lambda orders: grouped(orders, tumbling("at", HOUR), where="n > 2")),
    (
        "a computed column below",
        lambda orders: orders.df.selectExpr("customer", "n * 2 AS m").groupBy("customer").sum("m"),
        lambda orders: orders.df.selectExpr("customer", "n * 3 AS m").groupBy("customer").sum("m"),
    ),
    (
        "a join's columns",
        joined,
        lambda orders, payments: orders.df.join(payments.df, on(WITHIN)).select("orders.id", "how"),
    ),
    (
        "a join's condition",
        joined,
        lambda orders, payments: orders.df.join(
            payments.df, on(WITHIN.replace("1 HOUR", "2 HOURS"))
        ).select("orders.id", "amount"),
    ),
    (
        "a join's sides",
        joined,
        lambda orders, payments: payments.df.join(orders.df, on(WITHIN)).select(
            "orders.id", "amount"
        ),
    ),
    (
        "a join's type",
        joined,
        lambda orders, payments: orders.df.join(payments.df, on(WITHIN), "left").select(
            "orders.id", "amount"
        ),
    ),
    (
        "a column that identifies",
        deduplicated,
        lambda orders: orders.df.dropDuplicatesWithinWatermark(["customer"]),
    ),
    (
        "a join with a table below",
        enriched,
        lambda orders, customers: (
            orders.df.join(customers.df, "customer", "left").groupBy("city").count()
        ),
    ),
    ("state at all", hourly, plain),
    ("a distinct", "SELECT DISTINCT id FROM orders", "SELECT DISTINCT customer FROM orders"),
    (
        "a union",
        "SELECT id, count(*) FROM orders GROUP BY 1",
        "SELECT id, count(*) FROM (SELECT id FROM orders UNION ALL SELECT id FROM payments) "
        "GROUP BY 1",
    ),
]


@pytest.mark.parametrize(
    ("before", "now"), [pair[1:] for pair in DIFFERENT], ids=[name for name, _, _ in DIFFERENT]
)
def test_what_the_state_depends_on_changes_it(
    fingerprint: Fingerprints, before: Query, now: Query
) -> None:
    old, new = fingerprint(before), fingerprint(now)

    assert old.state != new.state
    assert old.made_by == new.made_by


@pytest.mark.parametrize(
    "changed",
    [{"schema": ORDERS["schema"].replace("n INT", "n BIGINT")}, {"topic": "orders.v2"}],
    ids=["a column's type", "a topic"],
)
def test_what_a_stream_holds_changes_it(fingerprint: Fingerprints, changed: dict[str, Any]) -> None:
    assert fingerprint(hourly, changed=changed) != fingerprint(hourly)


def test_many_columns_are_all_read(fingerprint: Fingerprints) -> None:
    """Spark cuts long lists in its texts."""
    names = [f"c{number}" for number in range(60)]
    schema = ", ".join(f"{name} INT" for name in names)

    def last(number: int) -> Callable[..., Any]:
        keys = [*names[:40], names[number]]
        return lambda orders: orders.df.groupBy(*keys).count()

    changed = {"schema": schema, "event_time": None, "watermark": None}
    assert fingerprint(last(58), changed=changed) != fingerprint(last(59), changed=changed)
