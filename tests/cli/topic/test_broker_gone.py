"""``topic consume`` and ``topic produce`` while the broker is killed and started again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until

pytestmark = pytest.mark.crash

GONE, BACK = b"any more: waiting for it", b"answers at"


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"groups.initial_rebalance_delay_ms": "0"}
    with BrokerProcess(tmp_path / "mortal", settings=settings) as process:
        yield process


class Reader:
    """A ``topic consume`` that runs in the background."""

    def __init__(self, tidemill: CommandLine, *arguments: str) -> None:
        self.process = tidemill.start("topic", "consume", *arguments)
        self.said = b""
        self.printed = b""
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def wait_for(self, said: bytes = b"", printed: bytes = b"") -> None:
        def arrived() -> bool:
            assert self.process.stdout is not None
            assert self.process.stderr is not None
            self.printed += self.process.stdout.read() or b""
            self.said += self.process.stderr.read() or b""
            return said in self.said and printed in self.printed

        poll_until(arrived, 40, f"{said!r} {printed!r}")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.mark.parametrize("options", [[], ["--group", "g"]], ids=["alone", "member"])
def test_consume_says_that_the_broker_is_gone_and_reads_on_when_it_is_back(
    mortal: BrokerProcess, tmp_path: Path, options: list[str]
) -> None:
    tidemill = CommandLine(mortal.bootstrap, tmp_path)
    tidemill.ok("topic", "produce", "t", stdin="one\n")
    reader = Reader(tidemill, "t", "--from", "beginning", "--format", "values", *options)
    try:
        reader.wait_for(printed=b"one\n")
        mortal.kill()
        reader.wait_for(said=GONE)
        mortal.start()
        reader.wait_for(said=BACK)
        tidemill.ok("topic", "produce", "t", stdin="two\n")
        reader.wait_for(printed=b"two\n")
        assert reader.said.count(GONE) == 1
        mortal.kill()
        assert reader.interrupt() in (0, 5)
    finally:
        reader.process.kill()
        reader.process.communicate()


def test_produce_says_that_the_broker_is_gone_and_how_long_it_has_tried(
    mortal: BrokerProcess, tmp_path: Path
) -> None:
    tidemill = CommandLine(mortal.bootstrap, tmp_path)
    tidemill.ok("topic", "create", "t")
    with tidemill.start("topic", "produce", "t", "-X", "message.timeout.ms=8000") as process:
        assert process.stdin is not None
        tidemill_is_ready = tidemill.json("topic", "list")
        assert tidemill_is_ready
        process.stdin.write(b"one\n")
        process.stdin.flush()
        poll_until(lambda: tidemill.json("topic", "list")[0]["records"] == 1, 30, "the record")
        mortal.kill()
        _, said = process.communicate(b"two\n", timeout=60)
    assert process.returncode == 1
    assert GONE in said
    assert b"did not accept them within 8 s" in said
