"""A decorator that runs an async test on the loop of its broker."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from tests.protocols.amqp.client import Broker

P = ParamSpec("P")
Test = Callable[Concatenate[Broker, P], Coroutine[Any, Any, None]]


def running(test: Test[P]) -> Callable[..., None]:
    """Return a test that pytest can call; ``broker`` is a fixture."""

    @wraps(test)
    def run(broker: Broker, *args: P.args, **kwargs: P.kwargs) -> None:
        broker.run(test(broker, *args, **kwargs))

    return run
