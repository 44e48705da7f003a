"""Find the methods of a class that handle events, by the annotation of their first parameter.

    class Account:
        def apply_deposited(self, event: Deposited) -> None: ...

The name behind the prefix is for people. Knows no store.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidemill.eventstore.app.errors import DeclarationError, MissingHandlerError

State = TypeVar("State")
Result = TypeVar("Result")


@functools.cache
def handlers(owner: type, prefix: str) -> Mapping[type, Callable[..., Any]]:
    """Return the methods of a class whose names begin with a prefix, by the events they take.

    Raises:
        DeclarationError: the first parameter has no class as its annotation, or two methods take
            the same event.
    """
    found: dict[type, Callable[..., Any]] = {}
    for name in dir(owner):
        method = getattr(owner, name)
        if not name.startswith(prefix) or not callable(method):
            continue
        for event in _events_of(owner, name, method):
            if event in found:
                raise DeclarationError(
                    f"{owner.__name__}.{found[event].__name__} and {owner.__name__}.{name} both "
                    f"take {event.__name__}",
                    hint="Keep one of them.",
                )
            found[event] = method
    return found


def taking(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that takes more arguments than the given one, and leaves out the last."""
    count = len(inspect.signature(function).parameters)
    return lambda *arguments: function(*arguments[:count])


def _events_of(owner: type, name: str, method: Callable[..., Any]) -> list[type]:
    parameters = list(inspect.signature(method).parameters)[1:]
    hint = "Annotate the first parameter: def " + name + "(self, event: SomeEvent)"
    try:
        annotation = typing.get_type_hints(method).get(parameters[0]) if parameters else None
    except NameError as error:
        raise DeclarationError(
            f"{owner.__name__}.{name} has an annotation that can't be resolved: {error}",
            hint="Declare the event classes at the top of a module.",
        ) from error
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    given = typing.get_args(annotation) if union else (annotation,)
    classes = [each for each in given if isinstance(each, type)]
    if len(classes) < len(given):
        raise DeclarationError(
            f"{owner.__name__}.{name} does not say which event it takes", hint=hint
        )
    return classes


def evolve(state: State, event: object) -> State:
    """Return the state behind an event.

    The state has a method ``apply`` that takes any event, or methods ``apply_…`` for each class of
    events. They change the state, or return a new one.

    Raises:
        MissingHandlerError: there is no method for the event. An event that changes nothing needs
            an empty one, so that a forgotten one is noticed.
    """
    apply = getattr(state, "apply", None)
    if apply is not None:
        changed = apply(event)
    else:
        owner: type = type(state)
        method = handlers(owner, "apply_").get(type(event))
        if method is None:
            kind = type(event).__name__
            raise MissingHandlerError(
                f"{owner.__name__} has no method for {kind}",
                hint=f"Add one, which can be empty: def apply_…(self, event: {kind}) -> None",
            )
        changed = method(state, event)
    return state if changed is None else typing.cast(State, changed)
