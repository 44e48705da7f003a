"""A follower: keeps three topics in memory, and recommends items over HTTP.

    python follower.py HOST:PORT

``/users/42?at=891000000`` answers as of that time: with what the user has rated before, and with
the days that were over. Any number of followers can serve the same topics, and each can be killed:
the next one reads the topics again.
"""

import bisect
import http.server
import json
import sys
import threading
import time
import urllib.parse
from collections import defaultdict
from pathlib import Path

import numpy
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

DAY = 86_400
RECENT = 10  # the last items of a user that count
DECAY = 0.8  # how much less each of them counts than the one after it
TOPICS = ("ratings", "movies", "coviewed", "trending")
BREAKABLE = ("seen", "future")


class Views:
    """The contents of the topics, which can be asked as of any time. It knows no Kafka.

    Args:
        broken: a rule that is broken on purpose, to see that the check finds it.
    """

    def __init__(self, broken=None):
        self.titles = {}
        self.rated = defaultdict(list)  # user: (time, item)
        self.beside = defaultdict(lambda: defaultdict(dict))  # item: day: {other: count}
        self.weeks = defaultdict(dict)  # end of a week: {item: count}
        self.size = 0  # greater than each item
        self.broken = broken
        self.lock = threading.Lock()
        self.arrays, self.sums = {}, {}  # made of the dictionaries when they are asked for

    def take(self, topic, row):
        """Take a row of a topic."""
        self.size = max(self.size, row["item"] + 1, row.get("other", 0) + 1)
        if topic == "ratings":
            bisect.insort(self.rated[row["user"]], (row["at"], row["item"]))
        elif topic == "movies":
            self.titles[row["item"]] = row["title"]
        elif topic == "trending":
            self.weeks[row["until"]][row["item"]] = row["count"]
        else:  # a pair counts in both directions
            for item, other in ((row["item"], row["other"]), (row["other"], row["item"])):
                day = self.beside[item][row["until"]]
                day[other] = day.get(other, 0) + row["count"]
                self.arrays.pop(item, None)
                self.sums.clear()

    def today(self, at):
        """Return the beginning of the day of a time: what ended until then is known."""
        return at // DAY * DAY + (DAY if self.broken == "future" else 0)

    def before(self, user, at):
        """Return the items that a user has rated before a time, the last one at the end."""
        rated = self.rated.get(user, [])
        return [item for _, item in rated[: bisect.bisect_left(rated, (at, 0))]]

    def trending(self, at, most, without=()):
        """Return the most rated items of the seven days before this one."""
        counts = self.weeks.get(self.today(at), {})
        ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        return [item for item, _ in ranked if item not in without][:most]

    def recommend(self, user, at, most):
        """Return what was rated beside the last items of the user; then what is trending.

        A count is divided by how often both items were in any pair, as cosine similarity does.
        """
        had = self.before(user, at)
        totals = self.totals(self.today(at))
        scores = numpy.zeros(len(totals))
        for age, item in enumerate(reversed(had[-RECENT:])):
            scores += self.counts(item, at) * DECAY**age / max(totals[item], 1) ** 0.5
        scores = numpy.round(scores / (totals + 10) ** 0.4, 9)
        without = [] if self.broken == "seen" else had
        scores[without] = 0
        found = [int(item) for item in numpy.argsort(-scores, kind="stable")[:most]]
        found = [item for item in found if scores[item]]
        return found + self.trending(at, most - len(found), {*without, *found})

    def counts(self, item, at):
        """Return how often each item was rated beside this one, in the days until ``at``."""
        days, others, counts = self.array(item)
        known = numpy.searchsorted(days, self.today(at), side="right")
        return numpy.bincount(others[:known], counts[:known], self.size)

    def totals(self, today):
        """Return in how many pairs each item was, in the days until today."""
        if today not in self.sums:
            sums = numpy.zeros(self.size)
            for item in self.beside:
                days, _, counts = self.array(item)
                sums[item] = counts[: numpy.searchsorted(days, today, side="right")].sum()
            self.sums = {today: sums}  # most requests are about one day
        return self.sums[today]

    def array(self, item):
        """Return the pairs of an item in the order of days: days, others, counts."""
        if item not in self.arrays:
            days = self.beside.get(item, {}).items()
            rows = sorted((day, other, n) for day, counts in days for other, n in counts.items())
            self.arrays[item] = numpy.array(rows, dtype=int).reshape(-1, 3).T
        return self.arrays[item]


class Follower(threading.Thread):
    """Reads what is committed in the topics, from their beginning, and then what comes."""

    def __init__(self, views, servers):
        super().__init__(daemon=True)
        self.views = views
        self.positions = {}
        config = {"bootstrap.servers": servers, "group.id": "follower"}  # no group is joined
        more = {"isolation.level": "read_committed", "enable.partition.eof": True}
        self.consumer = Consumer({**config, **more, "auto.offset.reset": "earliest"})
        topics = self.consumer.list_topics(timeout=60).topics
        places = [TopicPartition(name, n, 0) for name in TOPICS for n in topics[name].partitions]
        self.consumer.assign(places)

    def run(self):
        while True:
            messages = self.consumer.consume(5000, 0.05)
            with self.views.lock:
                for message in messages:
                    self.take(message)

    def take(self, message):
        end, error = message.offset(), message.error()
        if error is None:
            self.views.take(message.topic(), json.loads(message.value()))
            end += 1
        elif error.code() == KafkaError._PARTITION_EOF:
            pass  # its offset is behind the last record, with the markers of transactions
        elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
            raise KafkaException(error)
        else:
            return
        self.positions[f"{message.topic()}-{message.partition()}"] = end


class Requests(http.server.BaseHTTPRequestHandler):
    """``/``, ``/users/N``, ``/trending`` and ``/positions``."""

    protocol_version = "HTTP/1.1"  # connections are kept
    wbufsize = -1
    views = follower = None

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        try:
            status, body = 200, self.answer(url.path.strip("/").split("/"), query)
        except (KeyError, ValueError, OverflowError) as error:
            status, body = 404, {"error": f"not found: {error}"}
        kind = "text/html" if isinstance(body, bytes) else "application/json"
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", f"{kind}; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, path, query):
        at = int(query.get("at", time.time()))
        most = max(1, min(int(query.get("n", 10)), 100))
        with self.views.lock:
            if path == ["positions"]:
                return dict(self.follower.positions)
            if path == ["trending"]:
                return {"trending": self.named(self.views.trending(at, most))}
            if path[0] == "users":
                user = int(path[1])
                had = self.views.before(user, at)[-RECENT:][::-1]
                found = self.views.recommend(user, at, most)
                return {"user": user, "rated": self.named(had), "recommended": self.named(found)}
        if path == [""]:
            return (Path(__file__).parent / "page.html").read_bytes()
        raise KeyError(self.path)

    def named(self, items):
        return [{"item": item, "title": self.views.titles.get(item)} for item in items]

    def log_message(self, *_):
        """Print nothing."""


def main(servers, port="0", broken=None):
    views = Views(broken)
    follower = Follower(views, servers)
    Requests.views, Requests.follower = views, follower
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Requests)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    follower.run()  # if it fails, the process ends


if __name__ == "__main__":
    main(*sys.argv[1:])
