"""Works with a store of events, and prints figures.

Run as ``python -m bench.eventstore.work CONTENDER ADDRESS CASE NUMBER...``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.eventstore.contenders import CONTENDERS, DATA, Contender, Tidemill
from bench.run import percentile
from tidemill.eventstore.events import NewEvent, StreamAppend
from tidemill.eventstore.fold import Outcome
from tidemill.eventstore.store import rebuild

Figures = dict[str, float]
LONG, STREAMS, SHORT = 20_000, 2_000, 10
"""Events of the long stream; short streams, and their events."""
_IN_FLIGHT = 1000


def append(store: Contender, writers: int, events: int, seconds: float) -> Figures:
    """Append to a stream for each writer, one commit after the other."""
    times: list[float] = []

    def write(stream: int) -> None:
        version, end = 0, time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            assert store.append(stream, version, events)
            times.append(time.perf_counter() - now)
            version += events

    took = _in_threads(write, range(writers))
    return _figures("appends/s", times, took)


def contend(store: Contender, writers: int, seconds: float) -> Figures:
    """Append to one stream. After a conflict, a writer asks for the version, and tries again."""
    times: list[float] = []
    tries = [0] * writers

    def write(number: int) -> None:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            while True:
                tries[number] += 1
                if store.append(0, store.version(0), 1):
                    break
            times.append(time.perf_counter() - began)

    took = _in_threads(write, range(writers))
    return {**_figures("appends/s", times, took), "tries": sum(tries) / len(times)}


def replay(store: Contender, seconds: float) -> Figures:
    """Read one long stream, and many short ones."""
    for version in range(0, LONG, 100):
        store.append(0, version, 100)
    for stream in range(1, STREAMS + 1):
        store.append(stream, 0, SHORT)
    store.settle()
    store.read(0)
    return {
        "long, events/s": _rate(lambda: store.read(0), seconds),
        "short, events/s": _rate(
            lambda: sum(store.read(stream) for stream in range(1, STREAMS + 1)), seconds
        ),
    }


def subscribe(store: Contender, count: int) -> Figures:
    """Append, and wait in another thread until the subscription has it."""
    subscribed = store.following()
    assert subscribed is not None
    times: list[float] = []
    arrived = threading.Semaphore(0)
    began = 0.0
    with subscribed as wait:

        def follow() -> None:
            for _ in range(count):
                wait()
                times.append(time.perf_counter() - began)
                arrived.release()

        reader = threading.Thread(target=follow)
        reader.start()
        for version in range(count):
            began = time.perf_counter()
            store.append(0, version, 1)
            arrived.acquire()
        reader.join()
    return {"p50 ms": percentile(times, 50) * 1e3, "p99 ms": percentile(times, 99) * 1e3}


def build(address: str, events: int) -> Figures:
    """Fill a store with commits of ten events, and build its index again."""
    store = Tidemill(address).store
    room = threading.Semaphore(_IN_FLIGHT)
    done = threading.Semaphore(0)

    def answer(outcome: Outcome | BaseException) -> None:
        room.release()
        done.release()

    commits = events // 10
    for number in range(commits):
        new = tuple(NewEvent("moved", DATA) for _ in range(10))
        room.acquire()
        store.propose([StreamAppend(f"account-{number % 10_000}", new)], (), answer)
    for _ in range(commits):
        done.acquire()
    topic = store.topic
    store.close()
    servers, _, folder = address.split(",")
    began = time.perf_counter()
    rebuilt = rebuild(servers, topic, folder=folder, timeout_s=120)
    took = time.perf_counter() - began
    assert rebuilt.position == commits * 10
    size = sum(each.stat().st_size for each in Path(folder).glob(f"{topic}.sqlite*"))
    return {"s": took, "events/s": events / took, "bytes/event": size / events}


def _figures(name: str, times: list[float], took: float) -> Figures:
    return {
        name: len(times) / took,
        "p50 ms": percentile(times, 50) * 1e3,
        "p99 ms": percentile(times, 99) * 1e3,
    }


def _in_threads(work: Callable[[int], None], numbers: range) -> float:
    """Run work in threads; return the seconds that it took."""
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _rate(read: Callable[[], int], seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        count += read()
    return count / took


def main(who: str, address: str, case: str, *numbers: str) -> Figures:
    if case == "build":
        return build(address, int(numbers[0]))
    store = CONTENDERS[who](address)
    if case == "append":
        return append(store, int(numbers[0]), int(numbers[1]), float(numbers[2]))
    if case == "contend":
        return contend(store, int(numbers[0]), float(numbers[1]))
    if case == "replay":
        return replay(store, float(numbers[0]))
    return subscribe(store, int(numbers[0]))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
    sys.stdout.flush()
