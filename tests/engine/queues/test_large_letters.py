"""Dead letters that the headers of their deaths make too large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog

from tests.engine.queues.harness import Client, connected
from tests.engine.support import until
from tidemill.engine.queues import letters
from tidemill.engine.queues.api import DEATHS_HEADER

VALUE = bytes(4000)


async def test_the_oldest_deaths_are_left_out_if_there_is_no_space(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setattr(letters, "MAX_MESSAGE_BYTES", 10_000)
    before = [{"queue": f"{n}", "reason": "rejected", "keys": ["k" * 200]} for n in range(40)]
    await client.declare_jobs()
    await client.publish("jobs", VALUE, headers=[(DEATHS_HEADER, json.dumps(before).encode())])
    reader = await client.consume("jobs")
    reader.reject(await reader.wait(1))
    reader, (letter,) = await client.take(1, "dead")
    found = dict(letter.headers)[DEATHS_HEADER]
    assert found is not None
    names = [each["queue"] for each in json.loads(found)]
    assert names == ["jobs", *(f"{n}" for n in range(len(names) - 1))]
    assert 1 < len(names) < 40
    assert letter.value == VALUE


async def test_a_letter_that_no_queue_can_store_is_given_up_and_its_message_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "RETRY_S", 0.001)
    async with connected(tmp_path) as client:
        await client.declare_jobs()
        await client.publish("jobs", VALUE)
        with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
            patch.setattr("tidemill.log.format.validate.BUILT_BYTES", 3000)
            reader = await client.consume("jobs")
            reader.reject(await reader.wait(1))
            await until(lambda: any(e["event"] == "queue.letter_too_large" for e in lines))
        info = client.queues.describe("jobs")
        assert (info.ready, info.unacknowledged, client.ready("dead")) == (0, 0, 0)
        reader.consumer.cancel()
    (line,) = [each for each in lines if each["event"] == "queue.letter_too_large"]
    assert (line["queue"], line["partition"], line["offset"]) == ("jobs", "jobs-0", 0)
    assert sum(each["event"] == "queue.not_appended" for each in lines) == 1
    async with connected(tmp_path) as client:
        reader, (kept,) = await client.take(1)
        assert (kept.value, kept.redelivered) == (VALUE, True)
        reader.reject([kept])
        await until(lambda: client.ready("dead") == 1)
