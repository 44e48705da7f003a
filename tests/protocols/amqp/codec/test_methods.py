"""Methods: each is compared with pamqp, in both directions, and cut at every byte."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pamqp import frame as pamqp_frame

from tidemill.protocols.amqp.codec.methods import METHODS, MethodSpec, decode, encode, method_name
from tidemill.protocols.amqp.errors import AmqpError, ConnectionClosedError, MalformedError

SAMPLES: dict[str, Any] = {
    "octet": 9,
    "short": 0x1234,
    "long": 0x12345678,
    "longlong": 2**50,
    "shortstr": "näme",
    "longstr": "löng",
    "table": {"a": 1, "b": {"c": "d"}},
    "bit": True,
}
PAMQP_NAMES = {"type": "exchange_type", "global": "global_"}


def arguments(spec: MethodSpec) -> dict[str, Any]:
    """Return values for all arguments; every other bit is set."""
    return {
        name: index % 2 == 0 if kind == "bit" else SAMPLES[kind]
        for index, (name, kind) in enumerate(spec.fields)
    }


def pamqp_class(spec: MethodSpec) -> Any:
    return commands.INDEX_MAPPING[spec.number]


def test_the_table_has_all_methods_of_pamqp() -> None:
    assert {spec.number for spec in METHODS} == set(commands.INDEX_MAPPING)


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.name)
def test_pamqp_reads_what_is_encoded(spec: MethodSpec) -> None:
    values = arguments(spec)
    data = encode(7, spec.name, **values)
    count, channel, frame = pamqp_frame.unmarshal(data)
    assert (count, channel, type(frame)) == (len(data), 7, pamqp_class(spec))
    for name, value in values.items():
        assert getattr(frame, PAMQP_NAMES.get(name, name)) == value


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.name)
def test_what_is_encoded_is_decoded(spec: MethodSpec) -> None:
    values = arguments(spec)
    method = decode(encode(7, spec.name, **values)[7:-1])
    expected = {k: v.encode() if v == SAMPLES["longstr"] else v for k, v in values.items()}
    assert method == (spec.name, expected)


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.name)
def test_arguments_that_are_cut_are_refused(spec: MethodSpec) -> None:
    payload = encode(7, spec.name, **arguments(spec))[7:-1]
    for size in range(len(payload)):
        with pytest.raises(MalformedError):
            decode(payload[:size])


def test_missing_arguments_are_zero_and_empty() -> None:
    method = decode(encode(1, "queue.declare")[7:-1])
    assert method.text("queue") == ""
    assert method.table("arguments") == {}
    assert not method.flag("durable")
    assert method.number("ticket") == 0


def test_a_long_text_is_cut_to_what_fits() -> None:
    method = decode(encode(1, "channel.close", reply_text="x" * 300)[7:-1])
    assert method.text("reply_text") == "x" * 255


def test_unknown_methods_and_strings_that_are_not_text_are_refused() -> None:
    with pytest.raises(ConnectionClosedError) as refused:
        decode(b"\x00\x3c\x03\xe7")
    assert refused.value.code == 540
    with pytest.raises(AmqpError):
        decode(b"\x00\x14\x00\x0a\x01\xff")
    assert method_name(60 << 16 | 40) == "basic.publish"
    assert method_name(60 << 16 | 999) == "60.999"
