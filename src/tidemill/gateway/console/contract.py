"""The contract of a page: an address, a title, and a function that gives its data.

Must not know: how a page is rendered or served.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import Response

from tidemill.gateway.cluster.history import History
from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.errors import HttpError
from tidemill.gateway.parameters import Parameters, number_of
from tidemill.gateway.parts import Parts

ROOT = "/console"
"""All pages are below this path; what programs use (``/topics``) is beside it."""


@dataclass
class View:
    """One look at a page.

    Attributes:
        parts: The Kafka clients of the user.
        history: The last hour of the cluster.
        user: The name of the user who has logged in; empty if no one has.
        is_read_only: Whether actions are refused.
        render: Renders a template with data, for answers of a page's own.
        checks: What the overview asks for things that need attention.
    """

    page: Page
    request: Request
    parts: Parts
    history: History
    settings: ConsoleSettings
    user: str
    is_read_only: bool
    render: Callable[[str, Mapping[str, Any]], str] = lambda template, data: ""
    checks: Sequence[Check] = ()
    _snapshot: Snapshot | None = None
    _asked: set[str] = field(default_factory=set)

    async def snapshot(self) -> Snapshot:
        """Return all topics and groups: the same at each call for this view.

        Raises:
            UnreachableError: no broker answers.
        """
        if self._snapshot is None:
            self._snapshot = await self.parts.watch.snapshot()
        return self._snapshot

    async def snapshot_with(self, has: Callable[[Snapshot], bool]) -> Snapshot:
        """Return a snapshot; a new one without what is looked for: it may have been created since.

        Raises:
            UnreachableError: no broker answers.
        """
        snapshot = await self.snapshot()
        if not has(snapshot):
            self.parts.watch.expire()
            self._snapshot = snapshot = await self.parts.watch.snapshot()
        return snapshot

    @property
    def shown(self) -> Snapshot | None:
        """The snapshot, if this view has asked for it."""
        return self._snapshot

    @property
    def parameters(self) -> Parameters:
        """The parameters of the URL. One that is malformed is an error."""
        return Parameters(self.request, skip_empty=True, asked=self._asked)

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter of the URL."""
        return self.parameters.text(name) or default

    def needed(self, name: str) -> str:
        """Return a parameter of the URL that the page needs.

        Raises:
            HttpError: it is missing (400).
        """
        found = self.parameters.text(name)
        if not found:
            raise HttpError(400, "invalid_request", f"parameter {name} is missing")
        return found

    @property
    def kept(self) -> Mapping[str, str]:
        """The parameters that links of the page repeat: those that it has asked for.

        An action comes before its page has asked for any. It keeps all.
        """
        given = dict(self.request.query_params)
        if self.request.method == "POST" and not self._asked:
            return given
        return {name: value for name, value in given.items() if name in self._asked}

    def url(self, **changes: object) -> str:
        """Return the address of this page with other parameters. None leaves one out."""
        return address(self.page.address, **{**self.kept, **changes})


@dataclass(frozen=True)
class Done:
    """The result of an action: the page to go to, and what it says there.

    Attributes:
        url: As ``address`` returns it.
        is_problem: Whether the text is about a failure.
    """

    url: str
    text: str
    is_problem: bool = False


class Form(ImmutableMultiDict[str, str]):
    """The fields of a form. ``getlist`` returns all values of a field: those of checkboxes."""

    def needed(self, name: str) -> str:
        """Return a field without white space around it.

        Raises:
            HttpError: it is missing or empty (400).
        """
        found = self.get(name, "").strip()
        if not found:
            raise HttpError(400, "invalid_request", f"field {name} is missing")
        return found

    def number(self, name: str) -> int:
        """Return a field that is a whole number.

        Raises:
            HttpError: it is missing or malformed (400).
        """
        return number_of(name, self.needed(name))


Data: TypeAlias = Mapping[str, Any]
Action: TypeAlias = Callable[[View, Form], Awaitable["Done | Data"]]


@dataclass(frozen=True)
class Attention:
    """Something that the overview reports: in plain words, with what helps.

    Attributes:
        level: ``problem`` (something fails), ``warning`` or ``note``.
        text: One or two sentences.
        command: A command that helps; empty if there is none.
        url: The page that shows more; empty if there is none.
    """

    level: str
    text: str
    command: str = ""
    url: str = ""


Check: TypeAlias = Callable[[View, Snapshot], Awaitable[Sequence[Attention]]]
"""Finds what needs attention. It does not ask the brokers per topic, group or partition.

An error that it raises is a note on the overview.
"""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the console.

    Attributes:
        address: The path below ``/console/``, such as ``topics``. The JSON twin has ``.json``
            behind it. What a page is about is a parameter: names can have any character.
        title: What the page is called in the navigation and in the browser. By default, the
            address: ``event-stores`` is called "Event stores".
        about: One sentence for the documentation.
        template: The file in ``templates/``. By default, the address with ``_`` for ``-``.
        data: Gives what the page shows. Plain values: they are also the JSON.
        actions: What the page's forms can do, by the field ``action``.
        section: The heading of the navigation under which the page is; empty: it is not there.
        live_s: How often the block ``live`` is made again, in seconds; 0: it does not move.
        answers: What else the page has, by name, at ``ADDRESS.NAME``: downloads, streams of events.
        belongs_to: The address of the page that the navigation marks instead.
    """

    address: str
    title: str = ""
    about: str
    template: str = ""
    data: Callable[[View], Awaitable[Data]]
    actions: Mapping[str, Action] = field(default_factory=dict)
    section: str = ""
    live_s: float = 0.0
    answers: Mapping[str, Callable[[View], Awaitable[Response]]] = field(default_factory=dict)
    belongs_to: str = ""

    def __post_init__(self) -> None:
        words = self.address.split("-")
        object.__setattr__(self, "title", self.title or " ".join(words).capitalize())
        object.__setattr__(self, "template", self.template or f"{'_'.join(words)}.html")


def command_line(*words: str, name: str = "") -> str:
    """Return a command to copy, without the program's name in ``words``.

    Args:
        name: What the command is about. Clients choose names, so it is quoted.

    Returns:
        Empty if a character is not seen: pasted, it could be an order to the terminal.
    """
    names = [*(["--"] if name.startswith("-") else []), name] if name else []
    line = shlex.join(("tidemill", *words, *names))
    return line if line.isprintable() else ""


@lru_cache(10_000)
def address(page: str, /, **parameters: object) -> str:
    """Return the URL of a page. Parameters that are None or empty are left out."""
    given = {name: str(each) for name, each in parameters.items() if each not in (None, "")}
    return f"{ROOT}/{page}{'?' if given else ''}{urlencode(given)}"
