"""What a line means, in each dialect. The table is that of the originals, read in their sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.direct.statsd import Aggregator, Dialect, NameTags, Options

Found = dict[str, object]
ETSY, DATADOG = Dialect.statsd, Dialect.dogstatsd


def parsed(
    dialect: Dialect, *packets: bytes, name_tags: NameTags = NameTags.none
) -> tuple[Found, list[str]]:
    """Return the figure that counts of each series, and the reasons of malformed lines."""
    aggregator = Aggregator(Options(dialect=dialect, name_tags=name_tags))
    for packet in packets:
        aggregator.feed(packet)
    found: Found = {}
    for series, document in aggregator.flush(0, 10_000).documents():
        kind = {"counter": "c", "gauge": "g", "timer": "ms", "histogram": "h", "set": "s"}
        short = kind.get(series.kind, "d")
        if "count" in document:
            found[f"{series.key}|{short}"] = (document["count"], list(series.values))
        else:
            found[f"{series.key}|{short}"] = document["value"]
    return found, sorted(aggregator.counts().malformed)


LARGE = 1.2345678901234567e19
NUMBER, NO_VALUE, RATE = "not a finite number", "no value", "rate not in (0, 1]"
TABLE = [
    # line, etsy's series and reasons, Datadog's series and reasons
    (b"a:1|c", {"a|c": 1}, [], {"a|c": 1}, []),
    (b"a:2|c|@0.1", {"a|c": 20}, [], {"a|c": 20}, []),
    (b"g:-5|g", {"g|g": -5}, [], {"g|g": -5}, []),
    (b"g:7|g\ng:-5|g", {"g|g": 2}, [], {"g|g": -5}, []),
    (b"g:7|g\ng:+5|g", {"g|g": 12}, [], {"g|g": 5}, []),
    (b"g:0|g\ng:-5|g", {"g|g": -5}, [], {"g|g": -5}, []),
    (b"a:1:2|c", {"a|c": 2}, ["no type"], {"a|c": 3}, []),
    (b"a:1::2:|c", {}, ["no type", NO_VALUE], {"a|c": 3}, []),
    (b"a:1|c:2|ms", {"a|c": 1, "a|ms": (1, [2])}, [], {}, ["unknown type"]),
    (b"s:a:b|s", {"s|s": 1}, ["no type"], {"s|s": 1}, []),
    (b"s:a|s\ns:b|s\ns:a|s", {"s|s": 2}, [], {"s|s": 2}, []),
    (b"s:|s", {"s|s": 1}, [], {}, [NO_VALUE]),
    (b"a:1|foo", {"a|c": 1}, [], {}, ["unknown type"]),
    (b"a:1|c|@0", {}, [RATE], {}, [RATE]),
    (b"a:1|c|@1.1", {}, [RATE], {}, [RATE]),
    (b"a:1|c|@-1", {}, [RATE], {}, [RATE]),
    (b"a:1|c|@", {}, [RATE], {}, [RATE]),
    (b"a:1|g|@0.1", {"a|g": 1}, [], {"a|g": 1}, []),
    (b"a:-1|ms", {}, ["negative time"], {"a|ms": (1, [-1])}, []),
    (b"a:1|ms|@1e-9", {"a|ms": (1 / 1e-9, [1])}, [], {"a|ms": (1 / 1e-9, [1])}, []),
    (b"a:1:3:2|ms|@0.5", {"a|ms": (2, [2])}, ["no type"], {"a|ms": (6, [1, 2, 3])}, []),
    (b"a:1|h", {"a|c": 1}, [], {"a|h": (1, [1])}, []),
    (b"a:1|d", {"a|c": 1}, [], {"a|d": (1, [1])}, []),
    (b"a:1|c|", {}, [RATE], {"a|c": 1}, []),
    (b"a:1|c||@0.5", {}, [RATE], {"a|c": 2}, []),
    (b"a:1|c|@0.5|#x", {"a|#x|c": 2}, [], {"a|#x|c": 2}, []),
    (b"a:1|c|#x|@0.5", {}, ["bad tags"], {"a|#x|c": 2}, []),
    (b"a:1|c|#b:2,a,b:2,", {"a|#a,b:2|c": 1}, [], {"a|#a,b:2|c": 1}, []),
    (b"a:|g", {}, [NO_VALUE], {}, [NO_VALUE]),
    (b"a:|c", {}, [NO_VALUE], {}, [NO_VALUE]),
    (b"a|c", {}, [NO_VALUE], {}, [NO_VALUE]),
    (b"a", {}, [NO_VALUE], {}, ["no type"]),
    (b"a:1", {}, ["no type"], {}, ["no type"]),
    (b"a:1|", {}, ["no type"], {}, ["no type"]),
    (b":1|c", {}, ["no name"], {}, ["no name"]),
    (b"a:NaN|g", {}, [NUMBER], {}, [NUMBER]),
    (b"a:inf|g", {}, [NUMBER], {}, [NUMBER]),
    (b"a:1e999|g", {}, [NUMBER], {}, [NUMBER]),
    (b"a:0x10|g", {}, [NUMBER], {}, [NUMBER]),
    (b"a:1_0|g", {}, [NUMBER], {}, [NUMBER]),
    (b"a:1.5e3|g", {"a|g": 1500}, [], {"a|g": 1500}, []),
    (b"a:.5|g", {"a|g": 0.5}, [], {"a|g": 0.5}, []),
    (b"a:12345678901234567890|g", {"a|g": LARGE}, [], {"a|g": LARGE}, []),
    (b"a b  c/d$:1|c", {"a_b_c-d|c": 1}, [], {"a b  c/d$|c": 1}, []),
    (b"\xff:1|c", {}, ["no name"], {"\\xff|c": 1}, []),
    ("ü:1|c".encode(), {}, ["no name"], {"ü|c": 1}, []),
    (b"a:1|c\r\n\r\nb:2|c\n", {"a|c": 1, "b|c": 2}, [], {"a|c": 1, "b|c": 2}, []),
    (b"a:1|c|x:y|zz", {}, [NUMBER, RATE], {"a|c": 1}, []),
    (b"a:1|c|Tx", {}, [RATE], {}, ["bad timestamp"]),
    (b"a:1|c|T0", {}, [RATE], {}, ["bad timestamp"]),
    (b"x" * 3000 + b":1|c", {}, ["name and tags too long"], {}, ["name and tags too long"]),
    (b"a:1|c|#" + b",".join(b"t%d" % n for n in range(200)), {}, ["bad tags"], {}, ["bad tags"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "etsy", "etsy_reasons", "datadog", "datadog_reasons"),
    TABLE,
    ids=[repr(row[0][:40]) for row in TABLE],
)
def test_a_line_means_what_its_dialect_says(
    line: bytes,
    etsy: Found,
    etsy_reasons: list[str],
    datadog: Found,
    datadog_reasons: list[str],
) -> None:
    assert parsed(ETSY, line) == (etsy, etsy_reasons)
    assert parsed(DATADOG, line) == (datadog, datadog_reasons)


@pytest.mark.parametrize(
    ("style", "line", "key"),
    [
        (NameTags.influx, b"a,k=v,b=c:1|c", "a|#b:c,k:v|c"),
        (NameTags.librato, b"a#k=v,b=c:1|c", "a|#b:c,k:v|c"),
        (NameTags.graphite, b"a;k=v;b=c:1|c", "a|#b:c,k:v|c"),
        (NameTags.signalfx, b"a[k=v,b=c]z:1|c", "az|#b:c,k:v|c"),
        (NameTags.none, b"a;k=v:1|c", "a;k=v|c"),
        (NameTags.influx, b"a:1|c|#k:v", "a|#k:v|c"),
    ],
)
@pytest.mark.parametrize("dialect", [ETSY, DATADOG])
def test_tags_in_names_are_the_same_series_in_every_style(
    dialect: Dialect, style: NameTags, line: bytes, key: str
) -> None:
    assert parsed(dialect, line, name_tags=style) == ({key: 1}, [])


@pytest.mark.parametrize(
    ("style", "line"),
    [
        (NameTags.influx, b"a,k=v:1|c|#x"),  # two styles
        (NameTags.signalfx, b"a[k=v:1|c"),
        (NameTags.influx, b"a,=v:1|c"),
    ],
)
def test_mixed_or_broken_tags_are_malformed(style: NameTags, line: bytes) -> None:
    assert parsed(ETSY, line, name_tags=style) == ({}, ["bad tags"])


def test_a_line_with_a_time_is_of_that_time_and_not_of_the_interval() -> None:
    aggregator = Aggregator(Options(dialect=DATADOG))
    aggregator.feed(b"a:1|c|T1656581400|c:ci-abc|card:low|e:it-false\na:2|c\na:4|c|T1656581400")
    found = [document for _, document in aggregator.flush(0, 10_000).documents()]
    assert [(each["timestamp"], each["value"]) for each in found] == [
        (1656581400000, 1.0),
        (10_000, 2.0),
        (1656581400000, 4.0),
    ]
    assert found[0]["container"] == "ci-abc"
    assert found[0]["cardinality"] == "low"
    assert found[0]["external_data"] == "it-false"


@given(
    st.lists(st.binary(max_size=80), max_size=20),
    st.sampled_from([ETSY, DATADOG]),
    st.sampled_from(NameTags),
)
def test_no_bytes_end_the_parser(lines: list[bytes], dialect: Dialect, style: NameTags) -> None:
    aggregator = Aggregator(Options(dialect=dialect, name_tags=style, max_series=3, max_values=5))
    for line in lines:
        aggregator.feed(line)
    list(aggregator.flush(0, 1000).documents())
    aggregator.counts()


_PIECES = st.sampled_from(
    b"a : | 1 - @ 0.5 # , ms c g s T9 = ; [ ] \n e: card: _e{ 1,1} \xff".replace(
        b"\n", b"NL"
    ).split()
).map(lambda piece: piece.replace(b"NL", b"\n"))


@given(st.lists(_PIECES, max_size=30), st.sampled_from([ETSY, DATADOG]), st.sampled_from(NameTags))
def test_no_order_of_the_grammar_s_parts_ends_the_parser(
    parts: list[bytes], dialect: Dialect, style: NameTags
) -> None:
    aggregator = Aggregator(Options(dialect=dialect, name_tags=style))
    packet = b"".join(parts)
    aggregator.feed(packet)
    counts = aggregator.counts()
    assert counts.lines == sum(bool(line.removesuffix(b"\r")) for line in packet.split(b"\n"))
    list(aggregator.flush(0, 1000).documents())
