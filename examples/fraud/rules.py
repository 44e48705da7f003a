"""Five rules that look for fraud, as a pipeline. They know payments, and not what was simulated.

    tidemill pipeline run examples/fraud/rules.py

Each alert has an id made of what it is about, so a rule that is computed again after a crash says
the same. Amounts are cents, and places are kilometres on a map.
"""

from typing import NamedTuple

from pyspark.sql import functions as f

from tidemill.spark import Pipeline, TopicSink, enrich_as_of, sliding, stream_stream, tumbling


class Thresholds(NamedTuple):
    """The numbers that ``fraud.py --fit`` finds on seed 1. Other seeds have no influence."""

    limit_cents: int = 22000
    times_usual: int = 3
    day_times_usual: int = 20
    large_cents: int = 7500
    speed_kmh: int = 50
    chargebacks: int = 3


AT = Thresholds()
SMALL_CENTS = 100

pipeline = Pipeline("fraud", spark={"spark.sql.shuffle.partitions": "2"})
pipeline.stream(
    "payments",
    schema="payment STRING, at TIMESTAMP, card STRING, terminal STRING, x INT, y INT, cents INT",
    event_time="at",
    watermark="1 hour",
)
pipeline.stream(
    "chargebacks",  # a customer has complained, a week later, and was right
    schema="chargeback STRING, terminal STRING, reported TIMESTAMP",
    event_time="reported",
    watermark="1 hour",
)
pipeline.table(
    "cards",
    topic="bank.main.cards",
    format="debezium",
    schema="card STRING, x INT, y INT, usual INT, changed_at TIMESTAMP",
    key="card",
    keep_versions="120 days",
    valid_from="changed_at",  # payments of last week are compared with last week's card
)
ALERTS = TopicSink("alerts", key="card")


def alerts(found, kind, about=None):
    """Make alerts of rows that have a payment."""
    identity = [f.lit(kind), "payment"] + ([about] if about is not None else [])
    return found.select(
        f.lit(kind).alias("type"), f.concat_ws(":", *identity).alias("alert"), "card", "payment"
    )


@pipeline.query(sink=ALERTS)
def amount(payments, cards):
    """A payment that is high, or high for its card."""
    known = enrich_as_of(payments.df, cards, "card", "at", prefix="card_", how="inner")
    high = (known.cents > AT.limit_cents) | (known.cents > AT.times_usual * known.card_usual)
    return alerts(known.filter(high), "amount")


@pipeline.query(sink=ALERTS)
def velocity(payments, cards):
    """Much money within a day, for this card. The highest of its payments is suspicious."""
    known = enrich_as_of(payments.df, cards, "card", "at", prefix="card_", how="inner")
    days = known.groupBy(sliding("at", "1 day", "12 hours"), "card").agg(
        f.sum("cents").alias("spent"),
        f.max("card_usual").alias("usual"),
        f.max_by("payment", f.struct("cents", "payment")).alias("payment"),
    )
    fast = days.filter(days.spent > AT.day_times_usual * days.usual)
    return alerts(fast, "velocity", f.unix_seconds("window.start"))


def pairs(payments, within):
    """Two payments with one card, the second one at most this long after the first."""
    names = {name: f"first_{name}" for name in payments.df.columns if name != "card"}
    first = payments.df.withColumnsRenamed(names)
    both = stream_stream(first, payments.df, on="card", within=("0 seconds", within))
    return both.filter(both.first_payment < both.payment)


@pipeline.query(sink=ALERTS)
def small_then_large(payments):
    """A thief tries a card with a small payment first. The rule is that of Flink's walkthrough."""
    both = pairs(payments, "1 minute")
    tried = both.filter((both.first_cents < SMALL_CENTS) & (both.cents > AT.large_cents))
    return alerts(tried, "small-then-large", tried.first_payment)


@pipeline.query(sink=ALERTS)
def travel(payments, cards):
    """Impossible travel: the card was too fast. The payment farther from its home is suspicious."""
    both = pairs(payments, "6 hours")
    seconds = f.unix_seconds(both.at) - f.unix_seconds(both.first_at)
    apart = distance(both.x, both.y, both.first_x, both.first_y)
    reachable = f.greatest(f.lit(100), seconds * AT.speed_kmh / f.lit(3600))
    fast = enrich_as_of(
        both.filter(apart > reachable * reachable), cards, "card", "at", prefix="card_", how="inner"
    )
    is_first = distance(fast.first_x, fast.first_y, fast.card_x, fast.card_y) > distance(
        fast.x, fast.y, fast.card_x, fast.card_y
    )
    far = fast.withColumn("other", f.when(is_first, fast.payment).otherwise(fast.first_payment))
    far = far.withColumn("payment", f.when(is_first, fast.first_payment).otherwise(fast.payment))
    return alerts(far, "travel", far.other)


def distance(x, y, other_x, other_y):
    """The square of a distance."""
    return (x - other_x) * (x - other_x) + (y - other_y) * (y - other_y)


@pipeline.query(sink=ALERTS)
def terminal(payments, chargebacks):
    """A payment at a terminal about which several customers have complained within a week."""
    both = stream_stream(payments.df, chargebacks.df, on="terminal", within=("7 days", "0 seconds"))
    counted = both.groupBy(tumbling("at", "1 hour"), "card", "payment").agg(
        f.count("*").alias("complaints")
    )
    return alerts(counted.filter(counted.complaints >= AT.chargebacks), "terminal")
