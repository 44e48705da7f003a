"""Compute the revenue per country and minute from orders and a table of customers.

    tidemill pipeline run examples/orders.py

Each order is joined with the table as it is when the order is processed. Records that can't be
parsed go to ``orders.dlq`` with the reason. Each minute is written once, when it is final.
"""

from pyspark.sql import functions as f

from tidemill.spark import Pipeline, TopicSink, enrich, tumbling

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
