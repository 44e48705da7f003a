"""Passing parts to the kernel."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.net.outgoing.files import FileRange, content
from tidemill import system
from tidemill.native import extension
from tidemill.net.outgoing.sending import (
    FILE_PIECE_BYTES,
    MOST_PARTS,
    SHORT_BYTES,
    Ended,
    Known,
    send_parts,
)
from tidemill.parts import Part

pytestmark = [
    pytest.mark.disk,
    pytest.mark.skipif(not system.can_send_files(), reason="sendfile or cachestat is missing"),
]

MUCH = 1 << 40
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a TCP connection that don't block."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        # A new connection has left for less than the tests send, until the client acknowledges.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        client.setblocking(False)
        accepted.setblocking(False)
        yield accepted, client


def taken(client: socket.socket, size: int) -> bytes:
    """Return ``size`` bytes that were sent."""
    client.settimeout(60)
    got = bytearray()
    while len(got) < size:
        data = client.recv(size - len(got))
        assert data
        got += data
    client.setblocking(False)
    return bytes(got)


def nothing_waits(client: socket.socket) -> bool:
    try:
        return not client.recv(1)
    except BlockingIOError:
        return True


def test_buffers_and_files_are_sent_in_order(tmp_path: Path, pair: Pair) -> None:
    data = content(tmp_path / "file", 100_000)
    parts: list[Part] = [
        b"head",
        memoryview(b"of the response"),
        FileRange(tmp_path / "file", 10, 50_000),
        bytearray(b"between"),
        FileRange(tmp_path / "file", 60_000, 20_000),
        b"end",
    ]
    expected = b"headof the response" + data[10:50_010] + b"between" + data[60_000:80_000] + b"end"
    assert send_parts(pair[0], parts, 0, MUCH, Known.NONE) == (len(expected), Ended.MORE)
    assert taken(pair[1], len(expected)) == expected


def test_a_part_continues_where_it_ended(tmp_path: Path, pair: Pair) -> None:
    data = content(tmp_path / "file", 8192)
    assert send_parts(pair[0], [b"0123456789", b"!"], 7, MUCH, Known.NONE) == (4, Ended.MORE)
    part = FileRange(tmp_path / "file", 5, 8000)
    assert send_parts(pair[0], [part, b"!"], 7000, MUCH, Known.NONE) == (1001, Ended.MORE)
    assert taken(pair[1], 1005) == b"789!" + data[7005:8005] + b"!"


def test_a_full_socket_ends_the_call_and_nothing_is_lost(tmp_path: Path, pair: Pair) -> None:
    data = content(tmp_path / "file", 16 << 20)
    parts: list[Part] = [b"head", FileRange(tmp_path / "file", 0, len(data)), b"end"]
    expected = b"head" + data + b"end"
    first, ended = send_parts(pair[0], parts, 0, MUCH, Known.ALL)
    assert ended is Ended.FULL
    assert 4 < first < len(data)
    assert taken(pair[1], first) == expected[:first]
    got, sent = b"", first
    while sent < len(expected):
        index, skip = (1, sent - 4) if sent < len(data) + 4 else (2, sent - 4 - len(data))
        count, _ = send_parts(pair[0], parts[index:], skip, MUCH, Known.ALL)
        got += taken(pair[1], count)
        sent += count
    assert got == expected[first:]


def test_the_space_ends_the_call_but_not_before_a_short_buffer(tmp_path: Path, pair: Pair) -> None:
    content(tmp_path / "file", 65_536)
    part = FileRange(tmp_path / "file", 0, 65_536)
    parts: list[Part] = [part, b"end", part]
    assert send_parts(pair[0], parts, 0, 65_536, Known.ALL) == (65_539, Ended.MORE)
    long = bytes(SHORT_BYTES)
    assert send_parts(pair[0], [part, long], 0, 65_536, Known.ALL) == (65_536, Ended.MORE)
    assert send_parts(pair[0], [long, long, long], 0, 5000, Known.ALL) == (8192, Ended.MORE)
    assert send_parts(pair[0], [part], 0, 0, Known.ALL) == (0, Ended.MORE)


def test_a_call_sends_a_limited_number_of_parts(pair: Pair) -> None:
    parts: list[Part] = [b"x"] * (MOST_PARTS + 10)
    assert send_parts(pair[0], parts, 0, MUCH, Known.NONE) == (MOST_PARTS, Ended.MORE)
    assert send_parts(pair[0], [], 0, MUCH, Known.NONE) == (0, Ended.MORE)


def test_a_range_is_cached_only_if_all_of_its_pages_are(tmp_path: Path) -> None:
    content(tmp_path / "file", 1 << 20)
    fd = os.open(tmp_path / "file", os.O_RDWR)
    try:
        assert system.is_cached(fd, 1, (1 << 20) - 1)
        assert system.is_cached(fd, 5000, 10)
        assert not system.is_cached(fd, (1 << 20) - 10, 8192)  # beyond the end
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if system.is_cached(fd, 0, 1 << 20):
            pytest.skip("the file system keeps all pages")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, 10, 8192)
        assert system.is_cached(fd, 8192, 4096)
        assert not system.is_cached(fd, 0, 1 << 20)
    finally:
        os.close(fd)
    assert not system.is_cached(fd, 0, 10)


def test_what_is_not_cached_is_not_sent_unless_it_is_known_to_be(
    tmp_path: Path, pair: Pair
) -> None:
    data = content(tmp_path / "file", 3 * FILE_PIECE_BYTES)
    part = FileRange(tmp_path / "file", 0, len(data))
    os.fsync(part.fd)
    os.posix_fadvise(part.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(part.fd, 0, 0, os.POSIX_FADV_RANDOM)  # the kernel does not read ahead
    if any(system.is_cached(part.fd, at, 4096) for at in (0, FILE_PIECE_BYTES)):
        pytest.skip("the file system keeps pages")
    assert send_parts(pair[0], [b"head", part], 0, MUCH, Known.NONE) == (4, Ended.UNCACHED)
    assert send_parts(pair[0], [part], 0, MUCH, Known.NONE) == (0, Ended.UNCACHED)
    sent, ended = send_parts(pair[0], [part], 0, MUCH, Known.PIECE)
    assert 0 < sent <= FILE_PIECE_BYTES
    assert ended in (Ended.UNCACHED, Ended.FULL)
    assert taken(pair[1], 4 + sent) == b"head" + data[:sent]
    more, _ = send_parts(pair[0], [part], sent, MUCH, Known.ALL)
    assert more > 0
    assert taken(pair[1], more) == data[sent : sent + more]


def test_a_file_that_was_cut_is_reported(tmp_path: Path, pair: Pair) -> None:
    data = content(tmp_path / "file", 65_536)
    part = FileRange(tmp_path / "file", 0, 65_536)
    os.ftruncate(part.fd, 8192)
    sent, ended = send_parts(pair[0], [part, b"end"], 0, MUCH, Known.ALL)
    assert (sent, ended) == (8192, Ended.CUT)
    assert taken(pair[1], 8192) == data[:8192]
    assert nothing_waits(pair[1])


def test_a_closed_connection_or_file_is_an_error(tmp_path: Path, pair: Pair) -> None:
    content(tmp_path / "file", 65_536)
    part = FileRange(tmp_path / "file", 0, 65_536)
    unused = FileRange(tmp_path / "file", 0, 65_536)
    unused.close()
    with pytest.raises(OSError, match="Bad file"):
        send_parts(pair[0], [unused], 0, MUCH, Known.ALL)
    assert send_parts(pair[0], [unused], 0, MUCH, Known.NONE) == (0, Ended.UNCACHED)
    pair[0].shutdown(socket.SHUT_WR)
    for each in (part, b"head"):
        with pytest.raises(BrokenPipeError):
            send_parts(pair[0], [each], 0, MUCH, Known.ALL)
    pair[0].close()
    with pytest.raises(OSError, match="Bad file"):
        send_parts(pair[0], [b"head"], 0, MUCH, Known.ALL)


def test_any_cut_of_the_same_parts_gives_the_same_bytes(tmp_path: Path, pair: Pair) -> None:
    data = content(tmp_path / "file", 1 << 20)
    random_ = random.Random(5)
    for _ in range(20):
        parts: list[Part] = []
        expected = b""
        for _ in range(random_.randrange(1, 12)):
            size = random_.choice((1, 3, 100, 5000, 70_000))
            position = random_.randrange(len(data) - size)
            expected += data[position : position + size]
            if random_.random() < 0.5:
                parts.append(FileRange(tmp_path / "file", position, size))
            else:
                parts.append(memoryview(data)[position : position + size])
        skip, got = 0, b""
        while parts:
            sent, _ = send_parts(
                pair[0], parts, skip, random_.choice((1, 4000, 100_000)), Known.ALL
            )
            got += taken(pair[1], sent)
            skip += sent
            while parts and skip >= len(parts[0]):
                skip -= len(parts.pop(0))
        assert got == expected


def test_the_extension_refuses_invalid_arguments(pair: Pair) -> None:
    fd = pair[0].fileno()
    invalid = type("Invalid", (), {"fd": -1, "position": 0, "__len__": lambda _: 5})()
    negative = type("Negative", (), {"fd": fd, "position": -1, "__len__": lambda _: 5})()
    nothing = type("Nothing", (), {})()
    parts: Any
    for skip, parts, error in (
        (-1, [b"x"], ValueError),
        (1, [b"x"], ValueError),
        (1, [], ValueError),
        (0, [b"x", invalid], ValueError),
        (0, [negative], ValueError),
        (0, [nothing], AttributeError),
        (0, (b"x",), TypeError),
    ):
        with pytest.raises(error):
            extension.send_parts(fd, parts, skip, 10, 0)
    assert nothing_waits(pair[1])
