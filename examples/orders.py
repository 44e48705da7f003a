"""Revenue per country and minute, out of orders and a table of customers.

    tidemill pipeline run examples/orders.py

Orders are looked up in the table as it is when they are processed. What can't be parsed goes to
``orders.dlq`` with the reason. Each minute is written once, when no order for it can come any more.
"""

from pyspark.sql import functions as f

from tidemill.spark.joins import enrich
from tidemill.spark.pipeline import Pipeline
from tidemill.spark.sinks import TopicSink
from tidemill.spark.windows import tumbling

pipeline = Pipeline("orders")

pipeline.stream(
    "orders",
    schema="id BIGINT, customer STRING, cents BIGINT, at TIMESTAMP",
    event_time="at",
    watermark="30 seconds",
)
pipeline.table("customers", schema="customer STRING, country STRING", key="customer")


@pipeline.query(sink=TopicSink("revenue", key="country"))
def revenue(orders, customers):
    placed = enrich(orders.df, customers, on="customer")
    minutes = placed.groupBy(tumbling("at", "1 minute"), "country")
    return minutes.agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
