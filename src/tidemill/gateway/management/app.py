"""The addresses of RabbitMQ's management API.

A path is taken apart before it is decoded, because names have ``%2F``. Errors have RabbitMQ's body:
``error`` and ``reason``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from tidemill.errors import TidemillError
from tidemill.gateway.amqp.state import View
from tidemill.gateway.answers import json_answer
from tidemill.gateway.errors import HttpError, from_error
from tidemill.gateway.management import lists, objects
from tidemill.gateway.management.lists import BadListError
from tidemill.gateway.management.objects import VHOST, Json
from tidemill.gateway.parts import Parts

REASON = "Closed via management plugin"
METHODS = ("GET", "DELETE", "POST", "PUT", "PATCH")
"""Methods that are answered, if with 405."""
_NOT_FOUND = ("Object Not Found", "Not Found")
_LONGEST_PATH = 8192


class _MissingError(Exception):
    """There is no such object (404)."""


async def api(request: Request) -> Response:
    """Answer a request to ``/api/...``."""
    parts: Parts = request.app.parts
    if parts.amqp is None:
        raise HttpError(
            404,
            "not_found",
            "RabbitMQ's management API is not served here",
            hint="Set gateway.amqp_url to the address of tidemill's broker.",
        )
    path = _path(request)
    if request.method not in ("GET", "HEAD", "DELETE"):
        return Response(status_code=405, headers={"allow": "HEAD, GET, DELETE"})
    try:
        if request.method == "DELETE":
            return await _delete(request, parts, path)
        if path == ["whoami"]:
            return json_answer({"name": _user(parts), "tags": ["administrator"]})
        found = _get(path, await parts.amqp_state.view(), dict(request.query_params))
    except _MissingError:
        return _error(404, *_NOT_FOUND)
    except BadListError as error:
        return _error(400, error.code, str(error))
    except TidemillError as error:
        known = from_error(error)
        if known.status == 404:
            return _error(404, *_NOT_FOUND)
        if known.status == 403:
            return _error(401, "not_authorised", str(known))
        return _error(known.status, known.code, str(known))
    status = 503 if isinstance(found, dict) and found.get("status") == "failed" else 200
    return json_answer(found, status)


def _path(request: Request) -> list[str]:
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    text = raw[:_LONGEST_PATH].decode("ascii", "replace").partition("?")[0]
    given = text.removeprefix("/api").removeprefix("/").split("/")
    return [unquote(each, errors="replace") for each in given]


def _error(status: int, code: str, reason: str) -> Response:
    return json_answer({"error": code, "reason": reason}, status)


def _user(parts: Parts) -> str:
    return str(parts.kafka.properties.get("sasl.username", "guest"))


# --- changes -------------------------------------------------------------------------------------


async def _delete(request: Request, parts: Parts, path: Sequence[str]) -> Response:
    assert parts.amqp is not None
    reason = request.headers.get("x-reason") or REASON
    match path:
        case ["connections", "username", user]:
            names = _of_user(await parts.amqp_state.view(), user)
            await parts.amqp.close_connections(names, reason)
        case ["connections", name]:
            await parts.amqp.close_connection(name, reason)
        case _:
            return Response(status_code=405, headers={"allow": "HEAD, GET"})
    return Response(status_code=204)


# --- objects -------------------------------------------------------------------------------------


def _get(path: Sequence[str], view: View, asked: dict[str, str]) -> Json | list[Json]:
    """Return the object or the list at a path.

    Raises:
        _MissingError: there is none.
        BadListError: a parameter is invalid.
    """
    one = _one(path, view)
    if one is not None:
        columns = lists.columns_of(asked)
        return objects.cut(one, columns) if columns else one
    names, make, name_of = _many(path, view)
    return lists.listed(names, make, name_of, asked)


def _one(path: Sequence[str], view: View) -> Json | None:
    """Return the object at a path; None if it is perhaps a list."""
    match path:
        case ["overview"]:
            return objects.overview(view)
        case ["cluster-name"]:
            return {"name": "tidemill"}
        case ["nodes", name] if name == view.node["name"]:
            return objects.node(view)
        case ["vhosts", vhost] if vhost == VHOST:
            return objects.vhost(view)
        case ["queues", vhost, name] if vhost == VHOST:
            return objects.queue(name, _of(view.queues, name), view, in_detail=True)
        case ["exchanges", vhost, name] if vhost == VHOST:
            name = _exchange(name)
            return objects.exchange(name, _of(view.exchanges, name), in_detail=True)
        case ["bindings", vhost, "e", _, _, _, key] if vhost == VHOST:
            found = _between(path, view)
            return next((e for e in found if key in (e["properties_key"], _plain_key(e))), None)
        case ["connections", name] if name:
            return objects.connection(name, _of(view.connections, name), view)
        case ["channels", name]:
            return objects.channel(name, _of(view.channels, name), view, in_detail=True)
        case ["healthchecks", "node", *name] if name in ([], [view.node["name"]]):
            return {"status": "ok"}
        case ["health", "checks", *check]:
            return _health(check, view)
    return None


def _health(check: Sequence[str], view: View) -> Json:
    match check:
        case ["alarms" | "local-alarms" | "virtual-hosts"]:
            return {"status": "ok"}
        case ["node-is-mirror-sync-critical" | "node-is-quorum-critical"]:
            return {"status": "ok", "reason": "single node cluster"}
        case ["port-listener", port] if port.isascii() and port.isdecimal() and len(port) < 6:
            ports = [each[2] for each in view.node["listeners"]]
            if int(port) in ports:
                return {"status": "ok", "port": int(port)}
            reason = "No active listener"
            return {"status": "failed", "reason": reason, "missing": int(port), "ports": ports}
        case ["protocol-listener", protocol]:
            names = [each[0] for each in view.node["listeners"]]
            if protocol in names or protocol == "http":
                return {"status": "ok", "protocol": protocol}
            reason = "No active listener"
            return {"status": "failed", "reason": reason, "missing": protocol, "protocols": names}
    raise _MissingError


def _plain_key(binding: Json) -> str:
    """Return the key of a binding as clients that encode it once have it in the path."""
    return unquote(binding["properties_key"])


_SHORT = ("name", "vhost", "user", "node")
"""The fields of the connections of a user."""
Many = tuple[Sequence[Any], Callable[[Any], Json], Callable[[Any], str]]


def _many(path: Sequence[str], view: View) -> Many:
    """Return the names at a path, and how their objects are made.

    Raises:
        _MissingError: there is no list.
    """
    match path:
        case ["nodes"]:
            return _made([objects.node(view)])
        case ["vhosts"]:
            return _made([objects.vhost(view)])
        case ["queues"] | ["queues", "/"]:
            return list(view.queues), lambda n: objects.queue(n, view.queues[n], view), str
        case ["exchanges"] | ["exchanges", "/"]:
            return list(view.exchanges), lambda n: objects.exchange(n, view.exchanges[n]), str
        case ["connections"] | ["vhosts", "/", "connections"]:
            return _connections(view, list(view.connections))
        case ["connections", "username", user]:
            names = _of_user(view, user)
            whole = (objects.connection(n, view.connections[n], view) for n in names)
            return _made({key: each[key] for key in _SHORT} for each in whole)
        case ["connections", name, "channels"]:
            _of(view.connections, name)
            names = [n for n, e in view.channels.items() if e.fields["connection"] == name]
            return _channels(view, names)
        case ["channels"] | ["vhosts", "/", "channels"]:
            return _channels(view, list(view.channels))
        case ["consumers"] | ["consumers", "/"]:
            return _made(objects.consumers(view), "consumer_tag")
    return _made(_bindings(path, view), "routing_key")


def _bindings(path: Sequence[str], view: View) -> Iterable[Json]:
    match path:
        case ["bindings"] | ["bindings", "/"]:
            return objects.bindings(view)
        case ["bindings", "/", "e", _, "q" | "e", _]:
            return _between(path, view)
        case ["queues", "/", name, "bindings"]:
            _of(view.queues, name)
            return _of_destination("queue", name, view)
        case ["exchanges", "/", name, "bindings", "source"]:
            name = _exchange(name)
            _of(view.exchanges, name)
            return (each for each in objects.bindings(view) if each["source"] == name)
        case ["exchanges", "/", name, "bindings", "destination"]:
            _of(view.exchanges, name)
            return _of_destination("exchange", name, view)
    raise _MissingError


def _of_destination(kind: str, name: str, view: View) -> Iterable[Json]:
    return (
        each
        for each in objects.bindings(view)
        if each["destination"] == name and each["destination_type"] == kind
    )


def _between(path: Sequence[str], view: View) -> Iterable[Json]:
    """Yield the bindings of ``bindings/VHOST/e/SOURCE/q|e/DESTINATION``."""
    kind = {"q": "queue", "e": "exchange"}.get(path[4])
    source = _exchange(path[3])
    found = _of_destination(kind or "", path[5], view)
    return (each for each in found if each["source"] == source)


def _of_user(view: View, user: str) -> list[str]:
    """Return the names of the connections of a user."""
    return [name for name, each in view.connections.items() if each.fields["user"] == user]


def _connections(view: View, names: Sequence[str]) -> Many:
    return names, lambda n: objects.connection(n, view.connections[n], view), str


def _channels(view: View, names: Sequence[str]) -> Many:
    return names, lambda n: objects.channel(n, view.channels[n], view), str


def _made(found: Iterable[Json], name: str = "name") -> Many:
    return list(found), lambda each: each, lambda each: str(each[name])


def _of(entries: dict[str, Any], name: str) -> Any:
    entry = entries.get(name)
    if entry is None:
        raise _MissingError
    return entry


def _exchange(name: str) -> str:
    """Return the name of an exchange: the default one is ``amq.default`` in paths."""
    return "" if name == "amq.default" else name
