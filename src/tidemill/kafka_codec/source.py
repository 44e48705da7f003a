"""Python source that a compiler writes line by line, and the function it becomes.

Straight-line code is several times faster than a tree of closures. Only names and constants from
the schema get into it, never a byte that was received. Knows no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LITERALS = (int, float, str, bytes, type(None))


class Source:
    """The source of one function.

    Args:
        name: of the function; it also names the code in tracebacks.
        parameters: its parameters, comma-separated.
        names: what the code may refer to.
        step: the function is a generator that yields after this many calls of ``step``, a power of
            two; None: it is an ordinary function.
    """

    def __init__(
        self, name: str, parameters: str, names: dict[str, Any], step: int | None = None
    ) -> None:
        self._name = name
        self._lines = [f"def function({parameters}):"]
        self._depth = 1
        self._names = dict(names)
        self._count = 0
        self._step = step
        if step is not None:
            self.line("steps = 0")
            with self.block("if steps:"):
                self.line("yield")  # without an array it is a generator too

    def line(self, text: str) -> None:
        """Add a line to the current block."""
        self._lines.append("    " * self._depth + text)

    def step(self) -> None:
        """Count one element, in a loop over elements."""
        if self._step is not None:
            self.line("steps += 1")
            with self.block(f"if not steps & {self._step - 1}:"):
                self.line("yield")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a head such as ``if x:``, and indent the lines of the ``with`` body under it."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def variable(self, stem: str) -> str:
        """Return a name that nothing else in the function has."""
        self._count += 1
        return f"{stem}_{self._count}"

    def constant(self, value: Any, stem: str = "constant") -> str:
        """Return an expression for ``value``: a literal, or a name bound to it."""
        if isinstance(value, _LITERALS) or value == ():
            return repr(value)
        name = self.variable(stem)
        self._names[name] = value
        return name

    @property
    def text(self) -> str:
        """The source so far."""
        return "\n".join(self._lines)

    def build(self) -> Any:
        """Compile the function."""
        exec(compile(self.text, f"<{self._name}>", "exec"), self._names)
        return self._names["function"]
