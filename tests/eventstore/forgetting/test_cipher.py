"""Master keys in a file, and content that keys seal."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.eventstore.forgetting.cipher import Masters, new_key, seal, unseal
from tidemill.eventstore.forgetting.errors import KeyFileError, SealedContentError


@given(st.binary(max_size=200), st.text(max_size=20))
def test_what_is_sealed_is_opened_at_its_place_only(content: bytes, place: str) -> None:
    key = new_key()
    text = seal(key, content, place)
    assert unseal(key, text, place) == content
    assert seal(key, content, place) == text
    for wrong in ((key, text, place + "x"), (new_key(), text, place)):
        with pytest.raises(SealedContentError):
            unseal(*wrong)


@given(st.text(max_size=60))
def test_any_text_that_was_not_sealed_is_an_error(text: str) -> None:
    with pytest.raises(SealedContentError):
        unseal(b"k" * 32, text, "p")


def test_different_content_has_different_nonces() -> None:
    key = new_key()
    sealed = {seal(key, content, place)[:16] for content in (b"a", b"b") for place in ("p", "q")}
    assert len(sealed) == 4


def test_a_key_file_is_for_its_owner_only_and_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    Masters.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = Masters.read(path)
    assert first.current == "1"
    with pytest.raises(KeyFileError, match="can't write"):
        Masters.create(path)
    assert Masters.add(path) == "2"
    second = Masters.read(path)
    assert (second.current, second.naming) == ("2", first.naming)
    wrapped = first.wrap(b"k" * 32, "about")
    assert second.unwrap(wrapped, "1", "about") == b"k" * 32
    assert "k" * 8 not in repr(second)


def test_a_wrapped_key_belongs_to_its_subject(tmp_path: Path) -> None:
    Masters.create(tmp_path / "keys")
    masters = Masters.read(tmp_path / "keys")
    wrapped = masters.wrap(b"k" * 32, "ann")
    with pytest.raises(KeyFileError, match="does not unwrap"):
        masters.unwrap(wrapped, "1", "ben")
    with pytest.raises(KeyFileError, match="no master key 'x'"):
        masters.unwrap(wrapped, "x", "ann")
    with pytest.raises(KeyFileError):
        masters.unwrap("", "1", "ann")


@pytest.mark.parametrize(
    "text",
    ["", "naming:AAAA\n", "1:c2hvcnQ=\n", "naming\n", "1:\n", "# only\n", "\xff"],
)
def test_a_malformed_key_file_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_bytes(text.encode("latin-1"))
    with pytest.raises(KeyFileError, match="key"):
        Masters.read(tmp_path / "keys")
    with pytest.raises(KeyFileError) as raised:
        Masters.read(tmp_path / "absent")
    assert "keys init" in raised.value.hint
