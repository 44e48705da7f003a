"""A subject that is forgotten can't be read any more, anywhere."""

from __future__ import annotations

import dataclasses
import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import messages_to_end
from tidemill.eventstore.errors import (
    ForgottenKeyError,
    IdConflictError,
    InvalidCommitError,
)
from tidemill.eventstore.events import NONE, Appended, NewEvent, StreamAppend
from tidemill.eventstore.forgetting.cipher import Masters
from tidemill.eventstore.forgetting.errors import KeyFileError, SealedContentError
from tidemill.eventstore.forgetting.keyring import Keyring
from tidemill.eventstore.forgetting.sealed import Personal, SealedStore, personal_fields
from tidemill.eventstore.log import Record
from tidemill.eventstore.store import Store

FIELDS = {"registered": {"email": "customer"}, "sent": {"from": "sender", "to": "receiver"}}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    Masters.create(tmp_path / "keys")
    return tmp_path / "keys"


@dataclass
class Shop:
    """A store with personal fields."""

    kafka: Kafka
    topic: str
    key_file: Path
    plain: Store

    def open(self) -> SealedStore:
        return SealedStore(self.plain, self.keyring(), FIELDS)

    def keyring(self) -> Keyring:
        return Keyring(self.kafka, self.topic, Masters.read(self.key_file))


@pytest.fixture
def shop(kafka: Kafka, topic: str, key_file: Path) -> Any:
    with Store(kafka, topic) as plain:
        yield Shop(kafka, topic, key_file, plain)


def registered(customer: str, **more: Any) -> NewEvent:
    content = {"customer": customer, "email": f"{customer}@example.org", **more}
    return NewEvent("registered", json.dumps(content).encode())


def contents(store: Any) -> list[Any]:
    return [json.loads(event.data) for event in store.read_all(fresh=True)]


def everything(kafka: Kafka, topic: str) -> bytes:
    """All bytes of a store and of its keys."""
    return b"".join(
        (message.key() or b"") + (message.value() or b"")
        for name in (topic, f"{topic}.keys")
        for message in messages_to_end(kafka, "test", name)
    )


def test_personal_fields_are_sealed_in_the_log_and_opened_for_readers(shop: Shop) -> None:
    store = shop.open()
    store.append("customer-1", [registered("ann")], expected=NONE)
    store.append("note-1", [NewEvent("note", b"plain")])
    assert [event.data for event in store.read("note-1")] == [b"plain"]
    assert contents_of(store) == [{"customer": "ann", "email": "ann@example.org"}]
    assert b"@example.org" not in everything(shop.kafka, shop.topic)
    # Another process with the key file reads it, too.
    assert contents_of(shop.open()) == [{"customer": "ann", "email": "ann@example.org"}]
    with store.follow(wait_s=0.1) as followed:
        assert json.loads(next(followed).data)["email"] == "ann@example.org"


def contents_of(store: Any) -> list[Any]:
    return [json.loads(event.data) for event in store.read("customer-1", fresh=True)]


def test_a_forgotten_subject_is_gone_for_all_and_others_are_not(shop: Shop) -> None:
    store, other = shop.open(), shop.open()
    for name in ("ann", "ben"):
        store.append(f"customer-{name}", [registered(name)])
    assert len(contents(other)) == 2
    report = store.forget("ann")
    assert len(report.keys) == 1
    for reader in (store, other, shop.open()):
        assert contents(reader) == [
            {"customer": "ann", "email": None},
            {"customer": "ben", "email": "ben@example.org"},
        ]
    assert store.forget("ann").keys == []
    assert "backups" in report.out_of_reach[0]


def test_an_event_can_have_several_subjects(shop: Shop) -> None:
    store = shop.open()
    content = {"sender": "ann", "receiver": "ben", "from": {"iban": "A"}, "to": {"iban": "B"}}
    store.append("transfer-1", [NewEvent("sent", json.dumps(content).encode())])
    assert contents(store) == [content]
    store.forget("ben")
    assert contents(store) == [{**content, "to": None}]


def test_a_subject_that_comes_back_gets_a_new_key(shop: Shop) -> None:
    store = shop.open()
    store.append("customer-1", [registered("ann")])
    store.forget("ann")
    store.append("customer-1", [registered("ann", again=True)])
    assert [each["email"] for each in contents(store)] == [None, "ann@example.org"]
    assert store.forget("ann").keys != []
    assert [each["email"] for each in contents(store)] == [None, None]


def test_a_commit_that_was_sealed_before_the_subject_was_forgotten_is_void(shop: Shop) -> None:
    keyring = shop.keyring()
    key = keyring.of("ann")
    shop.open().forget("ann")
    late = StreamAppend("customer-1", (NewEvent("registered", b"sealed before"),))
    with pytest.raises(ForgottenKeyError):
        shop.plain.commit([late], keys=(key.id,))
    # A process that does not know it yet seals again, with a new key.
    store = SealedStore(shop.plain, keyring, FIELDS)
    store.append("customer-1", [registered("ann")])
    assert contents(store)[0]["email"] == "ann@example.org"


def test_the_same_event_again_is_stored_once(shop: Shop) -> None:
    store = shop.open()
    event = registered("ann")
    first = store.append("customer-1", [event])
    again = store.append("customer-1", [event])
    assert (again.positions, again.repeated) == (first.positions, True)
    other = NewEvent("registered", b'{"customer": "ann", "email": "x"}', id=event.id)
    with pytest.raises(IdConflictError):
        store.append("customer-1", [other])


def test_an_event_of_a_forgotten_subject_is_the_same_by_its_id_alone(shop: Shop) -> None:
    store = shop.open()
    ann, ben, plain = registered("ann"), registered("ben"), NewEvent("noted", b"{}")
    first = store.append("customer-1", [ann, ben, plain])
    store.append("customer-1", [registered("cid")])
    store.forget("ann")

    again = store.append("customer-1", [ann, ben, plain], expected=0)

    assert again == Appended(first.positions, first.versions, repeated=True)
    other_ben = dataclasses.replace(ben, data=b'{"customer": "ben", "email": "x"}')
    other_plain = dataclasses.replace(plain, data=b"[]")
    of_another_type = dataclasses.replace(ann, type="renamed")
    for commit in (
        [ann, other_ben, plain],
        [ann, ben, other_plain],
        [of_another_type, ben, plain],
        [ben, ann, plain],
        [ann, registered("dan"), plain],
    ):
        with pytest.raises(IdConflictError):
            store.append("customer-1", commit)
    with pytest.raises(IdConflictError):
        store.append("customer-2", [ann])
    assert len(contents(store)) == 4


def test_two_processes_can_make_a_key_each_and_forget_both(shop: Shop) -> None:
    one, two = shop.open(), shop.open()
    one.append("customer-1", [registered("ann")])
    two.append("customer-2", [registered("ann")])
    assert len(one.forget("ann").keys) == 2
    assert [each["email"] for each in contents(two)] == [None, None]


def test_keys_that_a_restored_copy_brings_back_are_deleted_again(shop: Shop) -> None:
    store = shop.open()
    store.append("customer-1", [registered("ann")])
    copy = [
        (message.key(), message.value())
        for message in messages_to_end(shop.kafka, "test", f"{shop.topic}.keys")
    ]
    store.forget("ann")
    producer = shop.kafka.producer("test")
    for key, value in copy:
        producer.produce(f"{shop.topic}.keys", value, key)
    producer.flush(30)
    restored = shop.open()
    assert restored.keyring.ids() == []
    assert contents(restored)[0]["email"] is None


def test_master_keys_are_rotated(shop: Shop) -> None:
    store = shop.open()
    for name in ("ann", "ben"):
        store.append("customer-1", [registered(name)])
    store.forget("ben")
    Masters.add(shop.key_file)
    assert shop.open().rotate() == 1
    # The old master key is not needed any more.
    lines = shop.key_file.read_text().splitlines(keepends=True)
    shop.key_file.write_text("".join(line for line in lines if not line.startswith("1:")))
    assert [each["email"] for each in contents(shop.open())] == ["ann@example.org", None]


def test_a_subject_that_is_forgotten_while_keys_are_wrapped_again_stays_forgotten(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.open().append("customer-1", [registered("ann")])
    with Store(shop.kafka, shop.topic) as behind:
        poll, catch_up, is_asked = behind._log.poll, behind.catch_up, threading.Event()

        def held(timeout_s: float) -> Iterator[Record]:
            return poll(timeout_s) if is_asked.wait(0.01) else iter(())

        def asked() -> None:
            is_asked.set()
            catch_up()

        monkeypatch.setattr(behind._log, "poll", held)
        monkeypatch.setattr(behind, "catch_up", asked)
        keyring = shop.keyring()
        write = keyring._write

        def late(values: Mapping[str, bytes | None]) -> None:
            if not is_asked.is_set():
                shop.open().forget("ann")
            write(values)

        monkeypatch.setattr(keyring, "_write", late)
        assert SealedStore(behind, keyring, FIELDS).rotate() == 0
    assert shop.keyring().ids() == []


def test_another_key_file_is_refused(shop: Shop, tmp_path: Path) -> None:
    shop.open().append("customer-1", [registered("ann")])
    shop.key_file.unlink()
    Masters.create(shop.key_file)
    with pytest.raises(KeyFileError, match="does not unwrap"):
        shop.open()


def test_sealed_content_can_not_be_moved_to_another_event(shop: Shop) -> None:
    store = shop.open()
    store.append("customer-1", [registered("ann")])
    (event,) = shop.plain.read("customer-1")
    shop.plain.append("customer-2", [NewEvent(event.type, event.data, uuid.uuid4())])
    with pytest.raises(SealedContentError, match="moved"):
        list(store.read("customer-2"))


@pytest.mark.parametrize(
    "data", [b"no json", b"[]", b'{"email": "x"}', b'{"customer": null, "email": "x"}']
)
def test_content_that_does_not_name_its_subject_is_refused(shop: Shop, data: bytes) -> None:
    with pytest.raises(InvalidCommitError, match="registered"):
        shop.open().append("customer-1", [NewEvent("registered", data)])
    assert shop.plain.position() == 0


def test_what_was_registered_is_cleared_and_a_failure_is_reported(shop: Shop) -> None:
    store = shop.open()
    store.append("customer-1", [registered("ann")])
    cleared: list[str] = []

    def clear(subject: str) -> str:
        cleared.append(subject)
        return "1 row"

    def fail(subject: str) -> str:
        raise OSError("disk is gone")

    store.on_forget("mailing list", clear)
    store.on_forget("archive", fail)
    report = store.forget("ann")
    assert cleared == ["ann"]
    assert report.cleared == {"mailing list": "1 row"}
    assert report.failed == {"archive": "disk is gone"}
    assert report.remains == report.keys  # until the topic of keys is compacted


def test_personal_fields_are_declared_in_event_classes() -> None:
    @dataclass
    class Registered:
        customer: str
        email: Annotated[str | None, Personal("customer")]

    globals()["Registered"] = Registered
    assert personal_fields({"registered": Registered}) == {"registered": {"email": "customer"}}

    @dataclass
    class Wrong:
        email: Annotated[str, Personal("nobody")]

    with pytest.raises(InvalidCommitError, match="nobody"):
        personal_fields({"wrong": Wrong})
