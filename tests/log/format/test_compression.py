"""The codecs: every client can read their bytes, and the size of their output is limited."""

from __future__ import annotations

import gzip
import os
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidRecordError, UnsupportedCompressionError
from tidemill.log.format.compression import CODEC_NAMES, Codec, codec_of, compress, decompress

CODECS = list(Codec)
SAMPLES = [b"", b"a", b"hello, world " * 5000, os.urandom(100_000), bytes(1 << 20)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_round_trip_up_to_exactly_the_limit(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(bytearray(packed))) == data
    assert compress(codec, memoryview(data)) == compress(codec, bytearray(data)) == packed


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_one_byte_over_the_limit_is_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="limit"):
        decompress(codec, compress(codec, data), len(data) - 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("level", [1, 9])
def test_levels(codec: Codec, level: int) -> None:
    data = b"abcabcabd" * 1000
    assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize(
    "data", [b"", b"x", b"\xff" * 40, b"\x82SNAPPY\x00" + bytes(8) + b"\0\0", b"\0\0\0\1" * 9]
)
def test_bytes_of_another_kind_are_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="damaged"):
        decompress(codec, data)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_cut_data_is_refused(codec: Codec) -> None:
    packed = compress(codec, SAMPLES[2])
    for size in (len(packed) - 1, len(packed) // 2, 20):
        with pytest.raises(InvalidRecordError, match="damaged"):
            decompress(codec, packed[:size])


@given(st.sampled_from(CODECS), st.binary(max_size=200))
def test_arbitrary_bytes_give_bytes_or_a_typed_error(codec: Codec, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, 1000)) <= 1000
    except TidemillError:
        return


def test_unknown_codecs_are_refused() -> None:
    for number in (5, 6, 7, -1):
        with pytest.raises(UnsupportedCompressionError):
            codec_of(number)
        with pytest.raises(UnsupportedCompressionError):
            compress(number, b"")
        with pytest.raises(UnsupportedCompressionError):
            decompress(number, b"")


def test_names_are_those_of_compression_type() -> None:
    assert CODEC_NAMES["uncompressed"] is Codec.NONE
    assert [CODEC_NAMES[n].value for n in ("gzip", "snappy", "lz4", "zstd")] == [1, 2, 3, 4]


# --- the frames, as other implementations expect them --------------------------------------------


def test_gzip_is_what_the_standard_library_reads() -> None:
    assert gzip.decompress(compress(Codec.GZIP, SAMPLES[2])) == SAMPLES[2]
    assert decompress(Codec.GZIP, gzip.compress(b"a") + gzip.compress(b"b")) == b"ab"


def test_lz4_frames_have_independent_blocks_for_javas_reader() -> None:
    frame = compress(Codec.LZ4, SAMPLES[2])
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] >> 6 == 1  # version
    assert frame[4] & 0x20  # blocks are independent
    assert not frame[4] & 0x01  # no dictionary


def test_snappy_is_written_in_the_framing_of_snappy_java() -> None:
    packed = compress(Codec.SNAPPY, bytes(70_000))
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    sizes = []
    position = 16
    while position < len(packed):
        (length,) = struct.unpack_from(">i", packed, position)
        block = packed[position + 4 : position + 4 + length]
        sizes.append(len(bytes(cramjam.snappy.decompress_raw(block))))
        position += 4 + length
    assert sizes == [32 * 1024, 32 * 1024, 70_000 - 64 * 1024]


def test_snappy_by_hand_raw_and_framed() -> None:
    # Raw: length 5 as a varint, then a literal of 5 bytes (tag (5-1)<<2).
    raw = bytes.fromhex("05 10") + b"hello"
    assert decompress(Codec.SNAPPY, raw) == b"hello"
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    block = struct.pack(">i", len(raw)) + raw
    assert decompress(Codec.SNAPPY, header + block + block) == b"hellohello"
    assert decompress(Codec.SNAPPY, header + block + header + block) == b"hellohello"
    assert decompress(Codec.SNAPPY, header) == b""


@pytest.mark.parametrize("length", [-1, 0, 6, 2**31 - 1])
def test_snappy_blocks_that_do_not_fit_are_refused(length: int) -> None:
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    with pytest.raises(InvalidRecordError, match="damaged"):
        decompress(Codec.SNAPPY, header + struct.pack(">i", length) + b"\x01\x00a")


def test_a_snappy_block_with_an_impossible_size_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(InvalidRecordError, match="can't expand"):
        decompress(Codec.SNAPPY, bytes.fromhex("ffffffff07 00 61"), 1 << 40)
