"""StatsD's metrics in a topic, over a broker."""

from __future__ import annotations

import functools
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.connect.direct.conftest import Running, Values, place
from tests.support.broker_process import BrokerProcess
from tests.support.effort import examples
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tests.support.spans import recorded
from tests.support.worker_process import WorkerProcess
from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import Board, BoardWriter
from tidemill.connect.base.definitions import parse
from tidemill.connect.direct import statsd
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import DefinitionError
from tidemill.connect.direct.registry import check_options
from tidemill.connect.direct.topics import BRIDGES

FAST: Values = {"listen": ["udp://127.0.0.1:0"], "interval_s": 0.2}


def counted(documents: list[Values], name: str) -> float:
    return float(sum(each["value"] for each in documents if each["name"] == name))


def listeners(running: Running) -> list[Values]:
    return [each for each in running.documents() if each["type"] == "listener"]


def counted_intervals(running: Running, name: str) -> int:
    return sum(each["name"] == name for each in running.documents())


def counted_series(running: Running) -> set[str]:
    return {each.get("name", "") for each in running.documents() if each["type"] != "listener"}


def test_counters_are_exact_over_many_intervals(running: Running, sender: socket.socket) -> None:
    running.define(**FAST)
    running.start()
    status = running.wait_for_phase("running")
    at = place(status["details"]["addresses"][0])
    for _ in range(200):
        sender.sendto(b"hits:1|c|@0.5\nhits:3|c", at)
        time.sleep(0.005)  # over several intervals
    running.wait(lambda: counted(running.documents(), "hits") == 1000, "all are counted")
    intervals = [each for each in running.documents() if each["name"] == "hits"]
    assert len(intervals) > 2
    assert all(each["timestamp"] % 200 == 0 for each in intervals)
    assert all(each["interval_s"] == pytest.approx(0.2, abs=0.01) for each in intervals[1:])
    running.wait(lambda: sum(each["packets"] for each in listeners(running)) == 200, "packets")
    listener = listeners(running)
    assert sum(each["lines"] for each in listener) == 400
    assert [each.get("partial") for each in listener[:2]] == [True, None]


def test_each_flush_has_a_span(running: Running) -> None:
    with recorded() as spans:
        running.define(**FAST)
        running.start()
        poll_until(spans, 30, "a flush has ended")
        ((name, made),) = spans().items()
    assert (name, made.kind.name) == (f"bridge {running.name}", "PRODUCER")
    assert made.status.is_ok or made.status.is_unset


def test_the_open_interval_is_written_at_the_end(running: Running, sender: socket.socket) -> None:
    running.define(**FAST | {"interval_s": 3600.0})
    running.start()
    at = place(running.wait_for_phase("running")["details"]["addresses"][0])
    sender.sendto(b"hits:7|c", at)
    running.wait(lambda: running.status()["received"] == 1, "it was received")
    running.stop()
    (hits,) = (each for each in running.documents() if each["name"] == "hits")
    assert (hits["value"], hits["partial"]) == (7, True)


def test_events_checks_and_raw_lines_have_topics_of_their_own(
    running: Running, sender: socket.socket
) -> None:
    events, raw = f"{running.topic}-events", f"{running.topic}-raw"
    running.define(**FAST, dialect="dogstatsd", events_topic=events, raw_topic=raw)
    running.start()
    at = place(running.wait_for_phase("running")["details"]["addresses"][0])
    lines = [b"_e{1,4}:a|text|d:1700000000", b"_sc|db|1", b"_e{9,9}:broken", b"hits:1|c"]
    sender.sendto(b"\n".join(lines), at)
    running.wait(lambda: len(running.documents(events)) == 2, "the events are there")
    assert [each["type"] for each in running.documents(events)] == ["event", "service_check"]
    assert running.documents(events)[0]["timestamp"] == 1_700_000_000_000

    from tidemill.confluent.reading import read_to_end

    found = [value for _, value in read_to_end(running.kafka, "tests", raw)]
    assert found == lines
    running.wait(lambda: running.status()["refused"] == 1, "the broken one is counted")


def test_a_time_in_the_far_future_costs_no_other_series(
    running: Running, sender: socket.socket
) -> None:
    """Brokers refuse a whole batch for one record that is far ahead of their clock."""
    running.define(**FAST, dialect="dogstatsd")
    running.start()
    at = place(running.wait_for_phase("running")["details"]["addresses"][0])
    event = b"_e{1,1}:a|b|d:999999999999"
    sender.sendto(b"late:1|c|T999999999999\nhits:1|c\n" + event, at)
    running.wait(lambda: {"late", "hits"} <= counted_series(running), "they are written")
    running.wait(lambda: len(counted_series(running)) == 3, "the event, too")
    stamps = {each.get("name", "event"): each["timestamp"] for each in running.documents()}
    assert stamps["late"] == stamps["event"] == 999_999_999_999_000
    assert running.status()["refused"] == 0


def test_a_clock_that_is_set_changes_neither_the_intervals_nor_their_rates(
    running: Running, sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifts_ms = [0]
    now_ms = statsd._now_ms
    monkeypatch.setattr(statsd, "_now_ms", lambda: now_ms() + shifts_ms[-1])
    running.define(**FAST)
    running.start()
    at = place(running.wait_for_phase("running")["details"]["addresses"][0])
    for shift_ms in (-3_600_000, -1_800_000, -7_200_000):
        shifts_ms.append(shift_ms)
        sender.sendto(b"hits%d:1|c" % len(shifts_ms), at)
        running.wait(lambda: len(counted_series(running)) == len(shifts_ms) - 1, "it is written")
    assert all(0 < each["interval_s"] < 60 for each in running.documents())


def test_intervals_end_while_raw_lines_are_always_under_way(
    running: Running, sender: socket.socket
) -> None:
    running.define(**FAST, raw_topic=f"{running.topic}-raw")
    running.start()
    at = place(running.wait_for_phase("running")["details"]["addresses"][0])
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.005):
            sender.sendto(b"hits:1|c", at)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        running.wait(lambda: counted_intervals(running, "hits") > 5, "several intervals ended")
    finally:
        done.set()
        sending.join()


def test_wide_records_have_all_columns(running: Running, sender: socket.socket) -> None:
    running.define(**FAST, format="wide", percentiles=[50.0, 99.9])
    running.start()
    at = place(running.wait_for_phase("running")["details"]["addresses"][0])
    sender.sendto(b"took:5|ms|#b:1,a\nhits:1|c", at)
    running.wait(lambda: counted_series(running) == {"took", "hits"}, "they are there")
    found = {each["name"]: each for each in running.documents() if each["type"] != "listener"}
    assert set(found["took"]) == set(found["hits"])
    assert found["took"]["upper_99_9"] == 5
    assert found["hits"]["upper_99_9"] is None
    assert found["took"]["tags"] == "a,b:1"


def test_a_paused_bridge_does_not_listen_and_a_resumed_one_does(running: Running) -> None:
    running.define(listen=[f"tcp://127.0.0.1:{reserve_port()}"], interval_s=0.2)
    running.start()
    at = place(running.wait_for_phase("running")["details"]["addresses"][0])
    running.order("pause", paused=True)
    running.wait_for_phase("paused")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(at)
    running.order("pause", paused=False)
    running.wait_for_phase("running")
    socket.create_connection(at).close()


def test_a_bridge_waits_for_a_port_that_is_in_use(running: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running.define(listen=[f"tcp://127.0.0.1:{taken.getsockname()[1]}"])
        running.start()
        status = running.wait_for_phase("waiting")
        assert "can't listen at tcp://127.0.0.1" in status["error"]
        assert status["hint"]
    running.wait_for_phase("running")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dialect": "graphite"}, "dialect"),
        ({"listen": ["nowhere"]}, "not an address"),
        ({"percentiles": [0.0]}, "percentile"),
        ({"intervall_s": 1}, "Did you mean interval_s?"),
        ({"listen": []}, "listen"),
        ({"expire": {"counter": -1}}, "expire"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any], said: str) -> None:
    given = {"name": "a", "kind": "statsd", "topic": "t", "options": options}
    definition = parse(Definition, given, DefinitionError, "")
    with pytest.raises(DefinitionError) as failure:
        check_options(definition)
    assert said in f"{failure.value} {failure.value.hint}"


def test_an_option_that_a_stored_definition_has_wrong_is_shown(running: Running) -> None:
    running.define(percentiles=[0.0])
    running.start()
    assert "percentile" in running.wait_for_phase("failed")["error"]


def test_an_invalid_entry_of_a_settings_file_keeps_no_other_bridge_from_running(
    kafka: Kafka, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The worker continues, and the log and the status name the bridge."""
    file = tmp_path / "tidemill.toml"
    entry = '[[bridge]]\nname = "declared-{}"\nkind = "statsd"\ntopic = "declared"\noptions = {}\n'
    file.write_text(
        entry.format("bad", '{ lissten = ["udp://127.0.0.1:0"] }')
        + entry.format("good", '{ listen = ["udp://127.0.0.1:0"] }')
    )
    command = ["bridge", "run", "--all", "--declared", str(file), "-b", broker.bootstrap]
    worker = WorkerProcess(command, tmp_path / "worker.log")
    worker.start()
    try:
        bad, good = Running(kafka), Running(kafka)
        bad.name, good.name = "declared-bad", "declared-good"
        good.wait_for_phase("running")
        status = bad.wait_for_phase("failed")
    finally:
        worker.kill()
        board = BoardWriter(kafka, BRIDGES)
        for name in ("declared-bad", "declared-good"):
            board.forget(name, Board.read(kafka, BRIDGES))
        board.flush()
    assert (status["error"], status["hint"]) == ("unknown key lissten", "Did you mean listen?")
    assert "bridge.failed bridge=declared-bad" in worker.log()


# The manager's thread ends with UnreachableError.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.crash
def test_a_worker_ends_soon_after_its_broker_is_gone(tmp_path: Path) -> None:
    """Its last interval and status can't be written, so it does not wait for that."""
    with BrokerProcess(tmp_path) as broker:
        running = Running(Kafka(broker.bootstrap))
        running.define(**FAST)
        running.start()
        running.wait_for_phase("running")
        broker.kill()
        began = time.monotonic()
        running.stop()
        assert time.monotonic() - began < 12  # it was 20


@pytest.mark.crash
def test_a_broker_that_is_away_costs_no_sample(tmp_path: Path, sender: socket.socket) -> None:
    """The broker is killed several times. Each sample is in one interval, and none is lost."""
    chance = random.Random(7)
    with BrokerProcess(tmp_path) as broker:
        running = Running(Kafka(broker.bootstrap))
        running.define(**FAST)
        running.start()
        try:
            at = place(running.wait_for_phase("running")["details"]["addresses"][0])
            sent = 0
            for _ in range(examples(2)):
                for _ in range(chance.randrange(50, 200)):
                    sender.sendto(b"hits:1|c", at)
                    sent += 1
                    time.sleep(0.002)
                broker.kill()
                for _ in range(100):
                    sender.sendto(b"hits:1|c", at)
                    sent += 1
                    time.sleep(0.002)
                broker.start()
            running.wait(lambda: counted(running.documents(), "hits") == sent, "all are counted")
            listener = listeners(running)
            assert sum(each["drops"] for each in listener) == 0
            assert max(each["interval_s"] for each in listener) > 0.3  # one was made longer
        finally:
            running.stop()


@pytest.mark.crash
def test_a_killed_worker_loses_the_open_interval_and_says_so(
    running: Running, broker: BrokerProcess, tmp_path: Path, sender: socket.socket
) -> None:
    port = reserve_port()
    running.define(listen=[f"tcp://127.0.0.1:{port}"], interval_s=0.5)
    command = ["bridge", "run", running.name, "-b", broker.bootstrap]
    worker = WorkerProcess(command, tmp_path / "worker.log")
    stored = 0

    def has(count: float) -> bool:
        return counted(running.documents(), "hits") >= count

    for _ in range(examples(2)):
        worker.start()
        running.wait(lambda: _connects(port), "it listens")
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(b"hits:1|c\n" * 10)
            running.wait(functools.partial(has, stored + 10), "they are stored")
            link.sendall(b"hits:1|c\n" * 5)  # of the open interval
        worker.kill()
        found = counted(running.documents(), "hits")
        assert stored + 10 <= found <= stored + 15
        stored = int(found)
    starts = listeners(running)
    assert sum(each.get("partial", False) for each in starts) == examples(2)


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
