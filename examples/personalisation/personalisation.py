"""Personalisation: what to show to whom, from ratings as they come.

    python examples/personalisation/personalisation.py

It downloads MovieLens 100K, starts a broker, a pipeline on Spark and a follower that recommends
movies over HTTP, kills the pipeline once, and says how often the next movie of a user was among the
ten that were recommended. It computes all views again, and compares. With -b it uses a broker that
runs, also of Apache Kafka; with --master a Spark cluster.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

import follower
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from ratings import DAY, generated, movielens

import tidemill

HERE = Path(__file__).parent
WAIT_S = 100
WITHIN_S, WEEK = 60, 7 * DAY
BREAKABLE = ("within", "week", "restart", *follower.BREAKABLE)
WAYS = ("recommended", "trending", "most popular so far")

# --- topics --------------------------------------------------------------------------------------


def create_topics(servers):
    """Create the topics. Ratings have one partition, so they stay in time order."""
    topics = [NewTopic(name, 1, 1) for name in follower.TOPICS if name != "movies"]
    topics.append(NewTopic("movies", 1, 1, config={"cleanup.policy": "compact"}))
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    try:
        for created in admin.create_topics(topics).values():
            created.result(60)
    except KafkaException as error:
        names = ", ".join(follower.TOPICS)
        sys.exit(
            f"error: {error.args[0].str()}\nhint: Delete the topics of an earlier run: {names}"
        )


def write(servers, ratings, titles):
    """Write titles and ratings, each once and in their order."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    for item, title in titles.items():
        producer.produce("movies", json.dumps({"item": item, "title": title}), str(item))
    for each in ratings:
        value = {"user": each.user, "item": each.item, "at": each.at}
        while True:
            with contextlib.suppress(BufferError):
                producer.produce("ratings", json.dumps(value), str(each.user))
                break
            producer.poll(0.1)
        producer.poll(0)
    if producer.flush(WAIT_S):
        sys.exit("error: ratings were not stored")


# --- processes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def followed(servers, port, broken):
    """Start a follower; yield its address."""
    command = [sys.executable, HERE / "follower.py", servers, str(port), *filter(None, [broken])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run_pipeline(servers, folder, arguments, kills):
    """Run the pipeline until it has caught up, and kill it meanwhile. Return how often it began."""
    command = [sys.executable, "-m", "tidemill", "pipeline", "run", HERE / "pipeline.py"]
    command += ["--until-caught-up", "-b", servers]
    if arguments.master:
        command += ["--master", arguments.master]
    environment = {**os.environ, "EXAMPLE_BREAK": arguments.broken or ""}
    deadline = time.monotonic() + 10 * WAIT_S
    for starts in range(1, 100):
        name = f"state-{starts}" if arguments.broken == "restart" else "state"
        with (folder / "pipeline.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--data-dir", folder / name],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )
        try:
            if starts <= kills:
                wait_for_results(servers, process)
                time.sleep(random.uniform(0, 3))
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait(max(1, deadline - time.monotonic()))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code == 0:
            return starts
        if code > 0 and not arguments.bootstrap_servers:
            sys.exit((folder / "pipeline.log").read_text()[-3000:])
    sys.exit("error: the pipeline did not catch up")


def wait_for_results(servers, process):
    """Wait until the pipeline has written something, so that it is killed in the middle."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "watch"})
    while process.poll() is None:
        with contextlib.suppress(KafkaException):
            if consumer.get_watermark_offsets(TopicPartition("coviewed", 0), timeout=5)[1]:
                break
        time.sleep(0.1)
    consumer.close()


class Client:
    """Asks the follower, on one connection."""

    def __init__(self, url):
        self.connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)

    def get(self, path):
        self.connection.request("GET", path)
        return json.loads(self.connection.getresponse().read())

    def items(self, path, name):
        return [each["item"] for each in self.get(path)[name]]

    def wait_until_read(self, servers):
        """Wait until the follower has read what the topics have now."""
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "watch"})
        places = [TopicPartition(name, 0) for name in follower.TOPICS]
        ends = {f"{p.topic}-0": consumer.get_watermark_offsets(p, timeout=60)[1] for p in places}
        consumer.close()
        deadline = time.monotonic() + WAIT_S
        while any(self.get("/positions").get(name, 0) < end for name, end in ends.items()):
            if time.monotonic() > deadline:
                sys.exit(f"error: the follower has not read all within {WAIT_S} s")
            time.sleep(0.05)


# --- how good it is ------------------------------------------------------------------------------


def evaluate(client, ratings, titles, every):
    """Ask before a rating what to recommend; return for each one asked who had it in ten.

    The first fifth of the ratings is only learned from. A user is asked about as of the second of
    the rating, so what is rated in the same second is not known yet.
    """
    popular, had = Counter(), defaultdict(set)
    asked, hits = [], []
    for number, each in enumerate(ratings):
        if number >= len(ratings) // 5 and number % every == 0:
            without = had[each.user]
            query = f"?at={each.at}&n="
            lists = (
                client.items(f"/users/{each.user}{query}10", "recommended"),
                [i for i in client.items(f"/trending{query}100", "trending") if i not in without],
                [i for i, _ in popular.most_common() if i not in without],
            )
            asked.append((each, lists[0]))
            hits.append((each.at, [each.item in found[:10] for found in lists]))
        popular[each.item] += 1
        had[each.user].add(each.item)
    return asked, hits


def rate(hits):
    return [100 * sum(column) / len(hits) for column in zip(*hits, strict=True)] if hits else []


def plot(hits, path):
    """Draw the hit rates of tenths of the ratings as lines, one beside the other in time."""
    size = max(1, len(hits) // 10)
    tenths = [hits[start : start + size] for start in range(0, size * 10, size)]
    lines = list(zip(*(rate([found for _, found in tenth]) for tenth in tenths), strict=True))
    top = 5 * (int(max(map(max, lines))) // 5 + 1)
    x, y = lambda place: 60 + place * 560 / 9, lambda percent: 260 - 220 * percent / top
    parts = []
    for percent in range(0, top + 1, 5):
        parts.append(f'<path d="M50 {y(percent):.1f}H640" stroke="#8884" fill="none"/>')
        parts.append(f'<text x="42" y="{y(percent) + 4:.1f}" text-anchor="end">{percent}%</text>')
    for place in (0, 3, 6, 9):
        day = datetime.fromtimestamp(tenths[place][0][0], tz=UTC)
        parts.append(f'<text x="{x(place):.1f}" y="284" text-anchor="middle">{day:%d %b %Y}</text>')
    colors = ("#0d9488", "#d97706", "#8b8f98")
    for line, color, name, down in zip(lines, colors, WAYS, (0, -9, 9), strict=True):
        points = " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="3"/>')
        end = y(line[-1]) + 4 + down
        parts.append(
            f'<text x="632" y="{end:.1f}" style="fill:{color}" font-weight="600">{name}</text>'
        )
    title = "Hit rate at 10: the next movie of a user is among ten"
    style = "text{font:13px system-ui,sans-serif;fill:#7d838c}"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 790 300" role="img"><title>{title}'
        f'</title><style>{style}</style><text x="50" y="20" font-weight="600">{title}</text>'
        f"{''.join(parts)}</svg>\n"
    )


# --- the check -----------------------------------------------------------------------------------


def expected_views(ratings):
    """Compute both views from the list of ratings, in two loops."""
    coviewed, trending, had = Counter(), Counter(), defaultdict(list)
    for each in ratings:
        day = each.at // DAY * DAY
        for end in range(day + DAY, day + DAY + WEEK, DAY):
            trending[end, each.item] += 1
        for other in reversed(had[each.user]):
            if each.at - other.at > WITHIN_S:
                break
            coviewed[day + DAY, other.item, each.item] += 1  # in one second: by their numbers
        had[each.user].append(each)
    today = ratings[-1].at // DAY * DAY  # windows of today are not final
    final = lambda counts: {key: n for key, n in counts.items() if key[0] <= today}  # noqa: E731
    return {"coviewed": final(coviewed), "trending": final(trending)}


def expected_list(views, by_item, ratings, user, at):
    """Compute ten recommendations as the follower should, without its arrays."""
    today = at // DAY * DAY
    had = [each.item for each in ratings if each.user == user and each.at < at]
    near = {item: Counter(dict(known(by_item, item, today))) for item in had[-10:]}
    scores = Counter()
    for age, item in enumerate(reversed(had[-10:])):
        for other, count in near[item].items():
            scores[other] += count * 0.8**age / max(near[item].total(), 1) ** 0.5
    ranked = sorted(
        (-round(score / (sum(n for _, n in known(by_item, item, today)) + 10) ** 0.4, 9), item)
        for item, score in scores.items()
        if item not in had
    )
    found = [item for _, item in ranked[:10]]
    week = [(-n, item) for (end, item), n in views["trending"].items() if end == today]
    rest = [item for _, item in sorted(week) if item not in had and item not in found]
    return found + rest[: 10 - len(found)]


def known(by_item, item, today):
    """Yield what was rated beside an item, and how often, until today."""
    counts = Counter()
    for end, other, count in by_item[item]:
        if end <= today:
            counts[other] += count
    yield from counts.items()


def check(servers, views, ratings, asked):
    """Compare the topics and what was served with what the list of ratings says."""
    print("Check, against the list of ratings:")
    wrong = 0
    for name, names in (("coviewed", ("until", "item", "other")), ("trending", ("until", "item"))):
        stored = Counter()
        for record in tidemill.read(name, bootstrap_servers=servers):
            row = record.json()
            stored[(*(row[each] for each in names), row["count"])] += 1  # once: not twice
        expected = Counter({(*key, count): 1 for key, count in views[name].items()})
        wrong += differences(f"topic {name}", stored, expected)
    by_item = defaultdict(list)
    for (end, item, other), count in views["coviewed"].items():
        by_item[item].append((end, other, count))
        by_item[other].append((end, item, count))
    some = asked[:: max(1, len(asked) // 25)]
    served = {(each.at, each.user): found for each, found in some}
    expected = {
        (each.at, each.user): expected_list(views, by_item, ratings, each.user, each.at)
        for each, _ in some
    }
    wrong += differences("served lists of ten", served, expected)
    if wrong:
        sys.exit(f"error: {wrong} rows differ")


def differences(what, found, expected):
    """Print how many rows are equal; return how many are not."""
    keys = found.keys() | expected.keys()
    wrong = [key for key in keys if found.get(key) != expected.get(key)]
    print(f"  {what:<24}{len(keys) - len(wrong):>8,} of {len(keys):,} equal")
    for key in sorted(wrong)[:2]:
        print(f"    {key}: {found.get(key)}, expected {expected.get(key)}")
    return len(wrong)


def day(at):
    return f"{datetime.fromtimestamp(at, tz=UTC):%d %b %Y}"


def load(arguments):
    """Return ratings and titles."""
    if arguments.generated is not None:
        return generated(arguments.generated)
    try:
        return movielens()
    except OSError as error:
        sys.exit(f"error: {error}\nhint: --generated 1 makes ratings, and needs no network.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", "-b", help="a broker; default: one of its own")
    parser.add_argument("--master", help="of a Spark cluster; default: this machine")
    parser.add_argument("--generated", type=int, metavar="SEED", help="no download: made ratings")
    parser.add_argument("--kills", type=int, default=1, help="how often the pipeline is killed")
    parser.add_argument("--every", type=int, default=20, help="evaluate one rating of so many")
    parser.add_argument("--picture", type=Path, default="personalisation.svg", help="its file")
    parser.add_argument("--port", type=int, default=0, help="of the follower; default: a free one")
    parser.add_argument("--keep", action="store_true", help="keep the follower until Ctrl-C")
    parser.add_argument("--break", dest="broken", choices=BREAKABLE, help="a rule")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    ratings, titles = load(arguments)
    users = len({each.user for each in ratings})
    print(f"Ratings   {len(ratings):,} of {users:,} users and {len(titles):,} items,", end=" ")
    print(f"{day(ratings[0].at)} to {day(ratings[-1].at)}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        servers = arguments.bootstrap_servers
        if servers is None:
            servers = stack.enter_context(tidemill.Broker()).bootstrap_servers
        create_topics(servers)
        broken = arguments.broken if arguments.broken in follower.BREAKABLE else None
        url = stack.enter_context(followed(servers, arguments.port, broken))
        write(servers, ratings, titles)
        began = time.monotonic()
        starts = run_pipeline(servers, folder, arguments, arguments.kills)
        print(f"Pipeline  caught up after {time.monotonic() - began:.0f} s and {starts} starts")
        client = Client(url)
        client.wait_until_read(servers)
        views = expected_views(ratings)
        began = time.monotonic()
        asked, hits = evaluate(client, ratings, titles, arguments.every)
        took = 1000 * (time.monotonic() - began) / len(hits) / 2
        print(f"Follower  {2 * len(hits):,} requests, {took:.1f} ms each")
        print(f"Hit rate at 10, before {len(hits):,} ratings")
        for name, percent in zip(WAYS, rate([found for _, found in hits]), strict=True):
            print(f"  {name:<22}{percent:>5.1f}%")
        plot(hits, arguments.picture)
        print(f"  The picture is {arguments.picture}")
        check(servers, views, ratings, asked)
        print("All checks passed.", flush=True)
        if arguments.keep:
            print(f"Open {url}/ ; Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()


if __name__ == "__main__":
    main()
