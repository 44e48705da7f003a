"""Rows of the table of access: a method that clients can call, and the questions that it asks.

A part of the door (``door``) is a class of rows. A row names a method of the engine, and for each
question an operation, a kind of resource, and where the names of the resources are: in an argument
or in the result. For a principal without restrictions a row is the method itself. Otherwise the
questions are asked around the call. ``authorize`` decides.

Knows no part of the engine, no protocol.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from tidemill.engine.authorize import Access, Operation, ResourceKind
from tidemill.engine.errors import AuthorizationError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


class Call:
    """A call by a principal whose access is checked.

    Attributes:
        access: the principal's access.
        core: the object whose method is called.
        given: the arguments, with defaults. A question can change them before the call.
    """

    __slots__ = ("access", "core", "given")

    def __init__(self, access: Access, core: Any, given: inspect.BoundArguments) -> None:
        given.apply_defaults()
        self.access = access
        self.core = core
        self.given = given

    def get(self, path: str) -> Any:
        """Return an argument, or a field of it: ``name`` or ``request.name``."""
        name, *fields = path.split(".")
        return functools.reduce(getattr, fields, self.given.arguments[name])

    def change(self, path: str, value: Any) -> None:
        """Change an argument, or a field of one that is a dataclass."""
        owner, _, name = path.rpartition(".")
        if owner:
            self.change(owner, replace(self.get(owner), **{name: value}))
        else:
            self.given.arguments[name] = value


@dataclass(eq=False, repr=False)
class Question:
    """One question of a row: an operation on resources of one kind. Subclasses ask it.

    An answer that denies raises an ``AuthorizationError``, or leaves something out.
    """

    operation: Operation
    kind: ResourceKind

    def before(self, call: Call) -> Any:
        """Ask before the call, and perhaps change its arguments; return what ``after`` needs."""

    def after(self, call: Call, known: Any, result: Any) -> Any:
        """Return the result as the principal sees it."""
        return result

    def allows(self, call: Call, name: str) -> bool:
        """Return whether the principal can use the resource."""
        return call.access.allows(self.operation, self.kind, name)

    def refusals(self, call: Call, names: Iterable[str]) -> list[AuthorizationError | None]:
        """Return the error or None for each name, in order."""
        return call.access.refusals(self.operation, self.kind, names)

    def check(self, call: Call, names: Iterable[str]) -> None:
        """Raise the first error of names that are denied."""
        for error in filter(None, self.refusals(call, names)):
            raise error


@dataclass(eq=False, repr=False)
class Check(Question):
    """Refuse the call if the principal can't use what an argument names.

    Attributes:
        path: the argument with one name, several or None; empty for the cluster.
    """

    path: str = ""

    def before(self, call: Call) -> None:
        """Ask about the names."""
        names = call.get(self.path) if self.path else ""
        self.check(call, (names,) if isinstance(names, str) else names or ())


@dataclass(eq=False, repr=False)
class Found(Question):
    """Refuse the result if the principal can't use one of the resources that are in it."""

    names: Callable[[Any], Iterable[str]]

    def after(self, call: Call, known: Any, result: Any) -> Any:
        """Ask about the names in the result."""
        self.check(call, self.names(result))
        return result


@dataclass(eq=False, repr=False)
class Visible(Question):
    """Leave out of a list, or of an iterator, what the principal can't use."""

    name: Callable[[Any], str]

    def after(self, call: Call, known: Any, result: Any) -> Any:
        """Return the elements that are allowed."""
        seen = (each for each in result if self.allows(call, self.name(each)))
        return list(seen) if isinstance(result, list) else seen


@dataclass(eq=False, repr=False)
class Each(Question):
    """Leave refused elements out of an argument, and put errors in their places in the result.

    Attributes:
        path: the argument: a list, a tuple, or a mapping whose keys count.
        name: returns the name of an element.
        refused: returns the result for an element that is refused.
        then: arguments that change if one is refused.
    """

    path: str
    name: Callable[[Any], str] = str
    refused: Callable[[AuthorizationError], Any] = lambda error: error
    then: Mapping[str, object] = field(default_factory=dict)

    def errors(self, call: Call, given: Iterable[Any]) -> list[AuthorizationError | None]:
        """Return the error or None for each element."""
        return self.refusals(call, (self.name(each) for each in given))

    def before(self, call: Call) -> list[AuthorizationError | None]:
        """Remove the elements that are refused; return the error or None of each."""
        given = call.get(self.path)
        errors = self.errors(call, given)
        if any(errors):
            allowed: Any = [e for e, error in zip(given, errors, strict=True) if error is None]
            if isinstance(given, Mapping):
                allowed = {key: given[key] for key in allowed}
            call.change(self.path, tuple(allowed) if isinstance(given, tuple) else allowed)
            for path, value in self.then.items():
                call.change(path, value)
        return errors

    def after(self, call: Call, known: list[AuthorizationError | None], result: Any) -> Any:
        """Return the errors, with the results of the others in their places."""
        following = iter(result)
        return [next(following) if error is None else self.refused(error) for error in known]


class Part:
    """A part of the door for one principal: the rows of its class, over objects of the engine."""

    def __init__(self, access: Access, *cores: object) -> None:
        self._access = access
        self._cores = cores


class Row(Generic[P, R]):
    """A method that clients can call, and its questions.

    Args:
        function: a method of a class of the engine.
        questions: are asked in this order.
    """

    def __init__(self, function: Callable[Concatenate[C, P], R], *questions: Question) -> None:
        self.function = function
        self.questions = questions
        self._name = ""

    def __set_name__(self, owner: type[Part], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, part: None, owner: type[Part]) -> Row[P, R]: ...

    @overload
    def __get__(self, part: Part, owner: type[Part]) -> Callable[P, R]: ...

    def __get__(self, part: Part | None, owner: type[Part]) -> Row[P, R] | Callable[P, R]:
        """Return the method for a principal. The part keeps it, so this is called once."""
        if part is None:
            return self
        name = self.function.__name__
        core = next(c for c in part._cores if getattr(type(c), name, None) is self.function)
        method: Callable[P, R] = getattr(core, name)
        if not part._access.is_unrestricted and self.questions:
            method = self._asking(method, core, part._access)
        part.__dict__[self._name] = method
        return method

    def _asking(self, method: Callable[P, R], core: object, access: Access) -> Callable[P, R]:
        signature = inspect.signature(method)
        work = cast(Callable[..., Awaitable[Any]], method)

        def asked(*args: Any, **kwargs: Any) -> tuple[Call, list[Any]]:
            call = Call(access, core, signature.bind(*args, **kwargs))
            return call, [question.before(call) for question in self.questions]

        def seen(call: Call, known: list[Any], result: Any) -> Any:
            for question, each in reversed(list(zip(self.questions, known, strict=True))):
                result = question.after(call, each, result)
            return result

        def at_once(*args: P.args, **kwargs: P.kwargs) -> R:
            call, known = asked(*args, **kwargs)
            return cast(R, seen(call, known, work(*call.given.args, **call.given.kwargs)))

        async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
            call, known = asked(*args, **kwargs)
            return seen(call, known, await work(*call.given.args, **call.given.kwargs))

        return cast(Callable[P, R], later) if inspect.iscoroutinefunction(method) else at_once


def asks(*questions: Question) -> Callable[[F], F]:
    """Declare the questions of a method that asks them itself."""

    def declare(function: F) -> F:
        function.questions = questions  # type: ignore[attr-defined]
        return function

    return declare
