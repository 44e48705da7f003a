"""Our own client against brokers that fail, cheat, or demand a login."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.reading.batches import batch, offsets
from tests.spark.conftest import broker_at
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed
from tests.support.fake_broker import (
    API_VERSIONS,
    AUTHENTICATE,
    CLOSE,
    FETCH,
    HANDSHAKE,
    LIST_OFFSETS,
    METADATA,
    FakeBroker,
    ScramServer,
    fake_broker,
    fetched,
    text,
)
from tidemill.errors import RequestTimedOutError, UnreachableError
from tidemill.kafka_client.fetching import client
from tidemill.reading import fetch as source_fetch
from tidemill.reading import librdkafka, own
from tidemill.reading.fetch import FetchPlan
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.errors import DataLossError

if TYPE_CHECKING:
    from tests.spark.conftest import Broker


@pytest.fixture(autouse=True)
def _idle_clients() -> Iterator[None]:
    yield
    own.close_idle_clients()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as found:
        yield found


def read(
    broker: FakeBroker | BrokerProcess,
    start: int = 0,
    end: int = 3,
    kafka: dict[str, str] | None = None,
    **fields: Any,
) -> list[int]:
    """Return the offsets that our own client reads."""
    fields.setdefault("timeout_ms", 5000)
    plan = FetchPlan({"bootstrap.servers": broker.bootstrap, **(kafka or {})}, **fields)
    batches = own.start(OffsetRange("t", 0, start, end), plan)
    assert batches is not None
    return offsets(list(batches))


THREE = batch(b"a", b"b", b"c")


DEADLINES_MS = (300, 3_000, 30_000)
"""Tried one after the other: on a busy machine nothing may happen before the first."""


def in_time(read: Callable[[int], list[int]]) -> list[int]:
    """Return what is read before one of the deadlines."""
    for ms in DEADLINES_MS[:-1]:
        with contextlib.suppress(RequestTimedOutError):
            return read(ms)
    return read(DEADLINES_MS[-1])


def timed_out(read: Callable[[int], list[int]], words: str) -> RequestTimedOutError:
    """Read until a deadline at which the cause is known, and return the error that names it."""
    for ms in DEADLINES_MS:
        with pytest.raises(RequestTimedOutError) as error:
            read(ms)
        if words in str(error.value):
            break
    assert words in str(error.value)
    return error.value


def test_connection_and_leader_are_kept_for_the_next_range(broker: FakeBroker) -> None:
    broker.answers[FETCH] = [fetched(THREE)]
    assert read(broker) == [0, 1, 2]
    assert read(broker, 1, 2) == [1]
    assert [api for api, _ in broker.requests] == [API_VERSIONS, METADATA, FETCH, FETCH]
    assert broker.connections == 1


def test_a_connection_that_was_collected_as_garbage_is_not_used_again(broker: FakeBroker) -> None:
    """A read that is given up in a cycle of objects gives back a client with closed sockets."""
    broker.answers[FETCH] = [fetched(THREE)]
    assert read(broker) == [0, 1, 2]
    ((client, _),) = own._pool._idle.values()
    for connection in client._brokers._connections.values():
        connection._socket.close()
    assert read(broker, 1, 2) == [1]
    assert broker.connections == 2


def test_the_next_response_is_requested_before_the_records_are_decoded(broker: FakeBroker) -> None:
    broker.answers[FETCH] = [fetched(THREE), fetched(batch(b"d", b"e", base=3))]
    plan = FetchPlan({"bootstrap.servers": broker.bootstrap})
    batches = own.start(OffsetRange("t", 0, 0, 5), plan)
    assert batches is not None
    assert offsets([next(batches)]) == [0, 1, 2]
    assert offsets(list(batches)) == [3, 4]
    # The offset follows the leader epoch: 4 + 1 + 2 + ... bytes before the end of the request.
    assert [struct.unpack_from(">q", each, len(each) - 24)[0] for each in broker.asked(FETCH)] == [
        0,
        3,
    ]


@pytest.mark.parametrize("code", [5, 6, 9, 56, 74, 78])
def test_temporary_errors_are_retried(broker: FakeBroker, code: int) -> None:
    broker.answers[FETCH] = [fetched(error=code), fetched(error=code), fetched(THREE)]
    assert read(broker) == [0, 1, 2]
    assert len(broker.asked(METADATA)) == 3


def test_a_leader_that_is_not_elected_yet_is_awaited(broker: FakeBroker) -> None:
    broker.answers[METADATA] = [
        broker.metadata(error=5),
        broker.metadata(partition_error=5),
        broker.metadata(),
    ]
    broker.answers[FETCH] = [fetched(THREE)]
    assert read(broker) == [0, 1, 2]


def test_a_lost_connection_is_made_again(broker: FakeBroker) -> None:
    broker.answers[FETCH] = [fetched(THREE), CLOSE, fetched(THREE)]
    assert read(broker) == [0, 1, 2]
    assert read(broker) == [0, 1, 2]
    assert broker.connections == 2


def test_an_address_that_does_not_answer_leaves_time_for_the_others(broker: FakeBroker) -> None:
    broker.answers[FETCH] = [fetched(THREE)]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},{broker.bootstrap}"
        kafka = {"bootstrap.servers": servers}
        assert in_time(lambda ms: read(broker, kafka=kafka, timeout_ms=ms)) == [0, 1, 2]


def test_waiting_ends_at_the_deadline_and_names_the_cause(broker: FakeBroker) -> None:
    broker.answers[FETCH] = [fetched(error=6)]
    words = "Broker: Not leader for partition"
    error = timed_out(lambda ms: read(broker, 1, timeout_ms=ms), words)
    assert "t-0: no record at offset 1 (of 1 to 3)" in str(error)
    assert "00 ms: Broker: Not leader for partition" in str(error)
    assert "pollTimeoutMs" in error.hint
    broker.answers[FETCH] = [fetched()]
    with pytest.raises(RequestTimedOutError, match="within 300 ms"):
        read(broker, timeout_ms=300)
    broker.answers[FETCH] = [CLOSE]
    timed_out(lambda ms: read(broker, timeout_ms=ms), "Disconnected")


@pytest.mark.parametrize(
    ("code", "words"), [(29, "Topic authorization failed"), (2, "Invalid message")]
)
def test_a_permanent_error_ends_the_read(broker: FakeBroker, code: int, words: str) -> None:
    broker.answers[FETCH] = [fetched(error=code)]
    with pytest.raises(UnreachableError, match=rf"can't read t-0 at offset 0: Broker: .*({words})"):
        read(broker)


def test_a_topic_that_stays_unknown_was_deleted(broker: FakeBroker) -> None:
    broker.answers[METADATA] = [broker.metadata(error=3)]
    kafka = {"topic.metadata.propagation.max.ms": "200"}
    with pytest.raises(DataLossError, match="t-0 was deleted, with offsets from 1"):
        read(broker, 1, kafka=kafka)
    assert read(broker, 1, kafka=kafka, fail_on_data_loss=False) == []
    broker.answers[METADATA] = [broker.metadata(error=3), broker.metadata()]
    broker.answers[FETCH] = [fetched(THREE)]
    assert read(broker, kafka={}) == [0, 1, 2]
    broker.answers[METADATA] = [broker.metadata()]
    plan = FetchPlan({"bootstrap.servers": broker.bootstrap, **kafka})
    with pytest.raises(DataLossError, match="t-1 was deleted"):  # there is no such partition
        list(source_fetch.fetch(OffsetRange("t", 1, 0, 1), plan))


def test_removed_records_are_reported_with_what_is_there(broker: FakeBroker) -> None:
    def listed(body: bytes) -> bytes:
        which = struct.unpack(">q", body[-8:])[0]
        head = struct.pack(">ii", 0, 1) + text("t") + struct.pack(">iihq", 1, 0, 0, -1)
        return head + struct.pack(">q", 2 if which == -2 else 90)

    broker.answers[LIST_OFFSETS] = [CLOSE, listed]
    broker.answers[FETCH] = [fetched(error=1)]
    with pytest.raises(DataLossError, match="has offsets 2 to 90, but 0 to 3 were not read yet"):
        read(broker)
    broker.answers[FETCH] = [fetched(error=1), fetched(THREE)]
    assert read(broker, fail_on_data_loss=False) == [2]


def test_damaged_records_are_reported_with_their_place(broker: FakeBroker) -> None:
    bad = bytearray(batch(b"d", base=3))
    bad[-2] ^= 1
    broker.answers[FETCH] = [fetched(THREE + bad)]
    with pytest.raises(
        UnreachableError, match=r"read t-0 at offset 0: .*damaged: batch at offset 3 "
    ):
        read(broker, 0, 4)
    broker.answers[FETCH] = [fetched(THREE + bad)]
    assert read(broker, 0, 3) == [0, 1, 2]


def test_a_batch_that_is_larger_than_the_response_is_requested_whole(broker: FakeBroker) -> None:
    def answer(body: bytes) -> bytes:
        (size,) = struct.unpack_from(">i", body, len(body) - 8)
        return fetched(bytes(THREE[:size]))

    broker.answers[FETCH] = [answer]
    assert read(broker, kafka={"fetch.message.max.bytes": "20"}) == [0, 1, 2]
    broker.answers[FETCH] = [fetched(bytes(THREE[:70]))]
    with pytest.raises(UnreachableError, match="the next batch is larger than"):
        read(broker)


def test_an_old_message_format_is_read_with_librdkafka(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def rest(wanted: OffsetRange, plan: FetchPlan) -> Iterator[pa.RecordBatch]:
        seen.append(wanted)
        yield pa.record_batch({"offset": [3]})

    monkeypatch.setattr(librdkafka, "fetch", rest)
    old = struct.pack(">qiIbbi", 3, 20, 0, 1, 0, 0) + bytes(20)
    broker.answers[FETCH] = [fetched(THREE + old)]
    plan = FetchPlan({"bootstrap.servers": broker.bootstrap})
    assert offsets(list(source_fetch.fetch(OffsetRange("t", 0, 1, 4), plan))) == [1, 2, 3]
    assert seen == [OffsetRange("t", 0, 3, 4)]


@pytest.mark.parametrize(
    ("setting", "kafka"), [("librdkafka", {}), ("", {"debug": ""}), ("", {"client.rack": "r"})]
)
def test_librdkafka_reads_if_it_is_chosen_or_needed(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, setting: str, kafka: dict[str, str]
) -> None:
    monkeypatch.setenv(source_fetch.SWITCH, setting)
    monkeypatch.setattr(librdkafka, "fetch", lambda *_: iter(["librdkafka"]))
    plan = FetchPlan({"bootstrap.servers": broker.bootstrap, **kafka})
    assert list(source_fetch.fetch(OffsetRange("t", 0, 0, 3), plan)) == ["librdkafka"]
    assert broker.requests == []


def test_a_certificate_that_cannot_be_read_is_left_to_librdkafka(tmp_path: Path) -> None:
    kafka = {"bootstrap.servers": "a:1", "security.protocol": "ssl"}
    plan = FetchPlan({**kafka, "ssl.ca.location": str(tmp_path / "none.pem")})
    assert own.start(OffsetRange("t", 0, 0, 1), plan) is None


MALFORMED = {
    "empty": b"",
    "cut": fetched(THREE)[:30],
    "records cut": fetched(THREE)[:-1],
    "negative count": struct.pack(">ihii", 0, 0, 0, -1),
    "huge count": struct.pack(">ihii", 0, 0, 0, 2**31 - 1),
    "huge name": struct.pack(">ihiih", 0, 0, 0, 1, 32767),
    "other": b"\xff" * 100,
}


@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("api", [API_VERSIONS, METADATA, FETCH])
def test_a_malformed_response_is_an_error(broker: FakeBroker, api: int, answer: bytes) -> None:
    broker.answers[api] = [answer]
    with pytest.raises((RequestTimedOutError, UnreachableError)):
        read(broker, timeout_ms=150)


def test_a_response_that_is_too_large_takes_no_memory(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.answers[FETCH] = [fetched(bytes(2_000_000))]
    limit = {"receive.message.max.bytes": "1000512", "fetch.max.bytes": "1000000"}
    words = "larger than receive.message.max.bytes"
    timed_out(lambda ms: read(broker, timeout_ms=ms, kafka=limit), words)


def test_another_server_is_an_error_in_time(broker: FakeBroker) -> None:
    broker.answers[API_VERSIONS] = [b"HTTP/1.1 400 Bad Request\r\n\r\n"]
    timed_out(lambda ms: read(broker, timeout_ms=ms), "malformed")


# --- login and TLS -------------------------------------------------------------------------------


def login(mechanism: str, password: str = "secret") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


HELLO = struct.pack(">hi", 0, 0)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_scram(broker: FakeBroker, algorithm: str) -> None:
    mechanism = f"SCRAM-SHA-{algorithm[3:]}"
    broker.answers = {
        HANDSHAKE: [HELLO],
        AUTHENTICATE: [ScramServer("secret", algorithm)],
        FETCH: [fetched(THREE)],
    }
    assert read(broker, kafka=login(mechanism)) == [0, 1, 2]
    assert broker.asked(HANDSHAKE) == [text(mechanism)]
    with pytest.raises(
        UnreachableError, match=r"rejected the connection: .*invalid credentials"
    ) as e:
        read(broker, kafka=login(mechanism, "wrong"))
    assert "kafka.sasl.*" in e.value.hint
    broker.answers[AUTHENTICATE] = [ScramServer("secret", algorithm, knows_password=False)]
    own.close_idle_clients()
    with pytest.raises(UnreachableError, match="does not know the password"):
        read(broker, kafka=login(mechanism))


def test_plain(broker: FakeBroker) -> None:
    accepted = struct.pack(">hhi", 0, -1, 0)
    broker.answers = {HANDSHAKE: [HELLO], AUTHENTICATE: [accepted], FETCH: [fetched(THREE)]}
    assert read(broker, kafka=login("PLAIN")) == [0, 1, 2]
    assert broker.asked(AUTHENTICATE) == [struct.pack(">i", 13) + b"\0alice\0secret"]


def test_a_mechanism_that_the_broker_does_not_support(broker: FakeBroker) -> None:
    broker.answers[HANDSHAKE] = [struct.pack(">hi", 33, 1) + text("GSSAPI")]
    with pytest.raises(UnreachableError, match=r"does not support .*PLAIN; it supports GSSAPI"):
        read(broker, kafka=login("PLAIN"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")
def test_tls(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    settings = {"kafka.tls_cert": str(cert), "kafka.tls_key": str(key)}
    trust = {"security.protocol": "ssl", "ssl.ca.location": str(cert)}
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        client = broker_at(broker.bootstrap, **trust)
        client.topic(name="t")
        client.produce("t", [bytes(1000)] * 3000)
        assert read(broker, 0, 3000, trust) == list(range(3000))
        pem = {"security.protocol": "ssl", "ssl.ca.pem": cert.read_text()}
        assert read(broker, 5, 9, pem) == [5, 6, 7, 8]
        blind = {"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"}
        assert read(broker, 5, 9, blind) == [5, 6, 7, 8]
        with pytest.raises(UnreachableError, match=r"rejected .*certificate is not valid here"):
            read(broker, 0, 1, {"security.protocol": "ssl"})
        with pytest.raises((RequestTimedOutError, UnreachableError)):
            read(broker, 0, 1, timeout_ms=300)  # without TLS


@pytest.mark.crash
def test_reading_continues_after_the_broker_was_killed_and_started_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        client = broker_at(broker.bootstrap)
        client.topic(name="t")
        client.produce("t", [bytes(1000)] * 3000)
        kafka = {**client.kafka, "fetch.message.max.bytes": "100000"}
        plan = FetchPlan(kafka, timeout_ms=60_000)
        batches = source_fetch.fetch(OffsetRange("t", 0, 0, 3000), plan)
        found = [next(batches), next(batches)]
        broker.kill()
        broker.start()
        assert offsets([*found, *batches]) == list(range(3000))
        assert own._pool._idle, "librdkafka has read it"


@pytest.mark.slow
def test_a_forked_process_makes_its_own_connections(tmp_path: Path) -> None:
    program = tmp_path / "forks.py"
    program.write_text(FORKS)
    with BrokerProcess(tmp_path / "broker") as broker:
        client = broker_at(broker.bootstrap)
        client.topic(name="t")
        client.produce("t", [bytes(1000)] * 2000)
        # Python 3.12 warns of threads, which are those of Arrow and not of the client.
        command = [sys.executable, "-W", "ignore::DeprecationWarning", str(program)]
        command.append(broker.bootstrap)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=dict(os.environ)
        )
        assert (done.returncode, done.stderr) == (0, "")


FORKS = """
import os, sys
from tidemill.reading.fetch import FetchPlan, fetch
from tidemill.reading.ranges import OffsetRange

def read():
    plan = FetchPlan({"bootstrap.servers": sys.argv[1]})
    for _ in range(5):
        assert sum(each.num_rows for each in fetch(OffsetRange("t", 0, 0, 2000), plan)) == 2000

read()
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        read()
        os._exit(0)
    children.append(child)
read()
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.parametrize("version", range(4, 11))
def test_each_version_of_fetch(
    tidemill_broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {**client.NEEDS, FETCH: (version, version)}
    monkeypatch.setattr(client, "NEEDS", needs)
    topic = tidemill_broker.topic()
    tidemill_broker.produce(topic, [b"x"] * 30)
    for isolation in ("read_committed", "read_uncommitted"):
        kafka = {"bootstrap.servers": tidemill_broker.bootstrap, "isolation.level": isolation}
        batches = own.start(OffsetRange(topic, 0, 5, 30), FetchPlan(kafka, timeout_ms=10_000))
        assert batches is not None
        assert offsets(list(batches)) == list(range(5, 30))
