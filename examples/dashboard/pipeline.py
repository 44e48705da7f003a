"""The pipeline of the dashboard: reads visits and orders, and keeps four tables in topics.

    python pipeline.py HOST:PORT

A table is a compacted topic: a record has a row, and the last one of a key counts. Rows, and how
far the events were read, are written in one transaction. So the process can be killed at any
moment: the next one reads the tables, continues behind the last transaction, and each event counts
once.
"""

import json
import sys
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import tidemill

EVENTS = ("shop.visits", "shop.orders")
TABLES = ("minutes", "products", "funnel", "visitors")
STEPS = ("home", "product", "cart", "order")
JOIN = timedelta(minutes=30)  # an order belongs to a visit if it follows its cart within this time
FORGET = timedelta(minutes=90)  # nothing arrives later than that, so visitors can be forgotten
BREAKABLE = ("late", "twice", "join", "restart")


class Board:
    """The tables, computed from one event after the other. It knows no Kafka.

    Args:
        places: the partitions that are read, as topic and number.
        broken: a rule that is broken on purpose, to see that the check finds it.
    """

    def __init__(self, places, broken=None):
        self.tables = {name: {} for name in TABLES}
        self.changed = set()
        self.latest = dict.fromkeys(places, "")  # the latest event of each partition
        self.watermark = ""  # the least of them: the partitions are read at different speeds
        self.broken = broken

    def row(self, table, key, **new):
        """Return a row to change, made of ``new`` if there is none."""
        self.changed.add((table, key))
        return self.tables[table].setdefault(key, new)

    def take(self, place, event, arrived):
        """Count an event of a partition. ``arrived`` is the time of its record."""
        at = datetime.fromisoformat(event["at"])
        if self.broken == "late" and arrived - at > timedelta(minutes=1):
            return
        visitor = self.row("visitors", event["visitor"], steps={}, orders=[], reached=0)
        if place[0] == "shop.visits":
            visitor["steps"].setdefault(event["page"], event["at"])
            if event["page"] == "home":
                self.minute(at)["visitors"] += 1
        elif event["order"] not in visitor["orders"] or self.broken == "twice":
            visitor["orders"].append(event["order"])
            visitor["steps"].setdefault("order", event["at"])
            self.revenue(event, at, arrived)
        self.follow(visitor)
        self.latest[place] = max(self.latest[place], event["at"])
        if (watermark := min(self.latest.values()))[:16] > self.watermark[:16]:
            self.watermark = watermark
            self.forget()

    def minute(self, at):
        """Return the row of the window that a time is in: tumbling, of one minute."""
        key = at.strftime("%Y-%m-%dT%H:%MZ")
        return self.row("minutes", key, minute=key, visitors=0, orders=0, cents=0, late_cents=0)

    def revenue(self, order, at, arrived):
        """Add an order to its minute, whenever it arrives, and to its product."""
        product = self.row(
            "products", order["product"], product=order["product"], orders=0, cents=0
        )
        for row in (self.minute(at), product):
            row["orders"] += 1
            row["cents"] += order["cents"]
        if arrived - at > timedelta(minutes=1):
            self.minute(at)["late_cents"] += order["cents"]

    def follow(self, visitor):
        """Join visits and orders of a visitor: how far is the way, without a gap, and in time?"""
        seen = visitor["steps"]
        reached = next((i for i, step in enumerate(STEPS) if step not in seen), len(STEPS))
        if reached == len(STEPS) and self.broken != "join":
            waited = datetime.fromisoformat(seen["order"]) - datetime.fromisoformat(seen["cart"])
            reached -= not timedelta(0) <= waited <= JOIN
        for step in STEPS[visitor["reached"] : reached]:
            self.row("funnel", step, step=step, visitors=0)["visitors"] += 1
        visitor["reached"] = max(reached, visitor["reached"])

    def forget(self):
        """Delete visitors who are gone. It is done once in each minute of the events."""
        before = (datetime.fromisoformat(self.watermark) - FORGET).isoformat()
        for name, row in list(self.tables["visitors"].items()):
            if max(row["steps"].values()) < before:
                self.tables["visitors"].pop(name)
                self.changed.add(("visitors", name))

    def changes(self):
        """Yield table, key and row of what has changed since the last call; None is deleted."""
        changed, self.changed = self.changed, set()
        for table, key in sorted(changed):
            yield table, key, self.tables[table].get(key)


def restore(board, servers):
    """Read the tables as they were committed."""
    for table in TABLES:
        for record in tidemill.read(f"shop.{table}", bootstrap_servers=servers):
            if record.value is None:
                board.tables[table].pop(record.key.decode(), None)
            else:
                board.tables[table][record.key.decode()] = record.json()


def run(servers, broken=None):
    """Work until the process is killed. Every error ends it; the next run continues."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": "shop.dashboard",  # a second pipeline fences the first one
            "metadata.recovery.strategy": "none",
            "linger.ms": 0,
        }
    )
    producer.init_transactions(120)  # ends what a killed run has left open
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "shop.dashboard",
            "enable.auto.commit": False,  # positions are part of the transactions
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    topics = consumer.list_topics(timeout=60).topics
    places = [TopicPartition(name, number) for name in EVENTS for number in topics[name].partitions]
    board = Board([(place.topic, place.partition) for place in places], broken)
    restore(board, servers)
    if broken != "restart":
        places = consumer.committed(places, timeout=60)
    for place in places:
        place.offset = max(place.offset, 0)
    consumer.assign(places)
    while True:
        count_some(board, consumer, producer, places)


def count_some(board, consumer, producer, places):
    """Count what has arrived, and write what it changes in one transaction."""
    messages = consumer.consume(2000, timeout=0.2)
    if not messages:
        return
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
        # The time of the record is when it was sent, the time in it is when it happened.
        sent = datetime.fromtimestamp(message.timestamp()[1] / 1000, tz=UTC)
        place = message.topic(), message.partition()
        board.take(place, json.loads(message.value()), sent)
    producer.begin_transaction()
    for table, key, row in board.changes():
        value = None if row is None else json.dumps(row)
        producer.produce(f"shop.{table}", value, key)
    producer.send_offsets_to_transaction(
        consumer.position(places), consumer.consumer_group_metadata(), 60
    )
    producer.commit_transaction(60)


if __name__ == "__main__":
    run(*sys.argv[1:])
