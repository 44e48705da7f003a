"""Event classes and their stored forms."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from tidemill.eventstore.app import Codec, Context
from tidemill.eventstore.app.errors import (
    DeclarationError,
    InvalidEventError,
    UnknownEventTypeError,
)
from tidemill.eventstore.app.testing import as_stored


@dataclass(frozen=True)
class Priced:
    at: datetime
    price: Decimal
    of: uuid.UUID
    notes: tuple[str, ...] = ()


class Pair(NamedTuple):
    left: int
    right: int


class Model(BaseModel):
    text: str


@pytest.mark.parametrize(
    "event",
    [
        Priced(datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.10"), uuid.uuid4(), ("a", "ü")),
        Pair(1, -(2**60)),
        Model(text="x" * 100_000),
    ],
)
def test_an_event_comes_back_as_it_was(event: object) -> None:
    codec = Codec()
    codec.event("it happened")(type(event))
    assert codec.decode(as_stored(codec, event)) == event
    assert codec.decided(event) == (event,)
    assert codec.decided([event, event]) == (event, event)
    assert codec.decided(None) == ()


def test_the_stored_name_is_that_of_the_class_in_words() -> None:
    codec = Codec()

    @codec.event(tags=lambda event: [f"order:{event.order}"])
    @dataclass
    class OrderPlaced:
        order: int

    new = codec.encode(OrderPlaced(7), Context(actor="user:1"), tags=["x"])
    assert (new.type, new.data, new.schema) == ("order placed", b'{"order":7}', 1)
    assert new.tags == {"order:7", "x"}
    assert Context.decode(new.metadata).actor == "user:1"


def test_old_versions_and_names_become_the_present_class_by_a_chain_of_functions() -> None:
    old = Codec()

    @old.event("opened")
    @dataclass
    class First:
        name: str

    codec = Codec()

    @codec.event("account opened", version=2)
    @dataclass
    class Opened:
        given: str
        family: str
        currency: str

    @codec.upcast("opened", 1)
    def split(content: dict[str, Any]) -> dict[str, Any]:
        given, _, family = content["name"].partition(" ")
        return {"given": given, "family": family}

    @codec.upcast("opened", 2, to="account opened")
    def rename(content: dict[str, Any]) -> dict[str, Any]:
        return content

    @codec.upcast("account opened", 1)
    def add_currency(content: dict[str, Any]) -> dict[str, Any]:
        return {**content, "currency": "EUR"}

    assert codec.decode(as_stored(old, First("Ada Byron"))) == Opened("Ada", "Byron", "EUR")
    assert codec.names([Opened]) == {"opened", "account opened"}


def test_what_the_code_does_not_know_is_a_typed_error() -> None:
    codec, other = Codec(), Codec()
    codec.event("paired")(Pair)
    other.event("paired", version=2)(Pair)
    with pytest.raises(UnknownEventTypeError, match="version 2"):
        codec.decode(as_stored(other, Pair(1, 2)))
    with pytest.raises(UnknownEventTypeError, match="unknown event 'paired'"):
        Codec().decode(as_stored(codec, Pair(1, 2)))
    with pytest.raises(InvalidEventError, match="at position 9"):
        codec.decode(as_stored(_renamed("paired"), Model(text="x"), position=9))
    with pytest.raises(DeclarationError, match="not a registered event"):
        codec.encode(Model(text="x"))
    with pytest.raises(DeclarationError, match="not a registered event"):
        codec.decided([Model(text="x")])
    with pytest.raises(DeclarationError, match="not a registered event"):
        codec.decided(17)


def _renamed(name: str) -> Codec:
    codec = Codec()
    codec.event(name)(Model)
    return codec


def test_names_are_unique_and_some_are_reserved() -> None:
    codec = Codec()
    codec.event("a")(Pair)
    for name, owner in (("a", Model), ("b", Pair), ("process.x", Model), (" ", Model)):
        with pytest.raises(DeclarationError):
            codec.event(name)(owner)
    with pytest.raises(DeclarationError, match="version 0"):
        codec.event("m", version=0)(Model)
    codec.upcast("a", 1)(dict)
    with pytest.raises(DeclarationError, match="two upcasts"):
        codec.upcast("a", 1)(dict)


def test_an_upcast_that_fails_names_the_event() -> None:
    codec, old = Codec(), Codec()
    old.event("a")(Pair)
    codec.event("a", version=2)(Pair)
    codec.upcast("a", 1)(lambda content: content["missing"])
    stored = as_stored(old, Pair(1, 2), position=5)
    with pytest.raises(InvalidEventError, match="version 1 failed at position 5"):
        codec.decode(stored)
    with pytest.raises(InvalidEventError, match="is not JSON"):
        codec.decode(stored._replace(data=b"{"))


def test_upcasts_in_a_circle_are_an_error() -> None:
    codec, old = Codec(), Codec()
    old.event("a")(Pair)
    codec.event("a", version=3)(Pair)
    codec.upcast("a", 1, to="b")(dict)
    codec.upcast("b", 1, to="a")(dict)
    with pytest.raises(DeclarationError, match="circle"):
        codec.decode(_with_object(old))


def _with_object(codec: Codec) -> Any:
    return as_stored(codec, Pair(1, 2))._replace(data=b'{"x": 1}')


@pytest.mark.parametrize("metadata", [b"", b"\xff", b"[1]", b'"x"', b'{"actor": 5, "extra": 1}'])
def test_metadata_of_other_programs_is_an_empty_context(metadata: bytes) -> None:
    assert Context.decode(metadata) == Context()
    assert Context().encode() == b""


def test_a_context_keeps_the_correlation_of_its_cause() -> None:
    codec = Codec()
    codec.event("a")(Pair)
    first = as_stored(codec, Pair(1, 2))
    assert Context().because_of(first).correlation == str(first.id)
    cause = as_stored(codec, Pair(1, 2), metadata=Context(correlation="case 7").encode())
    context = Context(actor="x", extra={"request": "r"}).because_of(cause)
    assert (context.correlation, context.causation) == ("case 7", str(cause.id))
    assert Context.decode(context.encode()) == context
