"""The checks of the crash suite find what they are there for."""

from __future__ import annotations

import pytest

from tests.crash.queues.history import NUMBERS, History, Lives, check, check_letters


def lives() -> Lives:
    """Two lives: 0 to 10, and 20 to the end."""
    found = Lives()
    found.started += [0.0, 20.0]
    found.ended += [10.0]
    return found


def history(*clients: str) -> History:
    found = History()
    for lines in clients:
        found.read(line + "\n" for line in lines.split(" | "))
    return found


@pytest.mark.parametrize(
    "clients",
    [
        ("C 1 2 | D 5 0 3 | A 5 4",),
        ("C 1 2 | D 5 0 3 | C 21 22 | D 5 1 23 | A 5 24",),
        # These bytes of the first life were read late.
        ("C 1 2 | D 5 0 23", "C 20.5 21 | D 5 1 21.5 | A 5 22"),
        # It is not known in which life this client has connected.
        ("C 9 21 | D 5 1 23", "C 1 2 | D 5 0 3 | A 5 4"),
        (f"C 1 2 | D 7 0 3 | D {NUMBERS} 0 3.5", "C 1 2 | D 8 0 3"),
    ],
)
def test_what_is_allowed(clients: tuple[str, ...]) -> None:
    check(history(*clients), lives())


@pytest.mark.parametrize(
    ("clients", "what"),
    [
        (("C 1 2 | D 5 0 3 | A 5 4", "C 1 2 | D 5 1 5"), "comes after its acknowledgement"),
        (("C 1 2 | D 5 0 3 | A 5 4", "C 21 22 | D 5 1 23"), "comes after its acknowledgement"),
        (("C 1 2 | D 5 0 3", "C 21 22 | D 5 0 23"), "not marked as redelivered"),
        (("C 1 2 | D 6 0 3 | D 5 0 4",), "out of order"),
    ],
)
def test_what_is_found(clients: tuple[str, ...], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check(history(*clients), lives())


def test_dead_letters() -> None:
    check_letters({1, 7, 14}, [14, 7, 21])
    for letters, what in (([7], "missing"), ([7, 14, 7], "twice"), ([7, 14, 1], "no consumer")):
        with pytest.raises(AssertionError, match=what):
            check_letters({1, 7, 14}, letters)
