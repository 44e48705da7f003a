"""Lookups of the names of endpoints: one that gets no answer holds up no other."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from typing import Any

import pytest

from tests.support.receiver import Receiver
from tidemill.connect.webhooks.definition import parse
from tidemill.connect.webhooks.names import Names
from tidemill.connect.webhooks.sender import Answer, Sender


def sender(url: str) -> Sender:
    fields = {"name": "a", "topic": "t", "url": url, "signed": False, "allow_private": True}
    return Sender(parse({**fields, "timeout_s": 30}))


async def test_names_without_an_answer_hold_up_no_other_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, asked, release = socket.getaddrinfo, threading.Semaphore(0), threading.Event()

    def look_up(host: Any, *rest: Any, **more: Any) -> Any:
        if not str(host).endswith(".dead.test"):
            return real("127.0.0.1", *rest, **more)
        asked.release()
        assert release.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "no server of names answers")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    dead = [sender(f"http://n{number}.dead.test/") for number in range(40)]
    waiting: list[asyncio.Task[Answer]] = []
    try:
        waiting += [asyncio.create_task(each.post({}, b"")) for each in dead]
        for _ in dead:
            assert await asyncio.to_thread(asked.acquire, timeout=60)
        with Receiver() as receiver:
            alive = sender(f"http://alive.test:{receiver.port}/")
            answer = await alive.post({"webhook-id": "1"}, b"")
            await alive.close()
        assert answer.status == 200
        assert not any(each.done() for each in waiting)
    finally:
        release.set()
        answers = await asyncio.gather(*waiting)
        for each in dead:
            await each.close()
    assert {(each.status, "no server of names answers" in each.error) for each in answers} == {
        (None, True)
    }


async def test_a_lookup_that_no_caller_waits_for_any_more_ends_quietly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()
    failed: list[Any] = []

    def look_up(*_: Any, **__: Any) -> Any:
        assert release.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(threading, "excepthook", failed.append)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Names().resolve("slow.test"), 0.01)
    release.set()
    for thread in threading.enumerate():
        if thread.name == "look up slow.test":
            await asyncio.to_thread(thread.join, 60)
    assert failed == []


async def test_too_many_threads_are_an_error_of_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread") as raised:
        await Names().resolve("a.test")
    assert raised.value.errno == errno.EAGAIN


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_a_name_gets_the_addresses_of_its_family(family: socket.AddressFamily) -> None:
    host = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}[family]
    (found,) = await Names().resolve(host, 80, family)
    assert (found["hostname"], found["host"], found["port"]) == (host, host, 80)
    assert found["family"] == family
