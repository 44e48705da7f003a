"""Recognizes variables that Kubernetes and Docker set for a service, and that are not settings.

In each pod, Kubernetes describes every service of the namespace by variables that begin with the
service's name: ``TIDEMILL_PORT=tcp://10.0.0.7:9092`` for a service ``tidemill``, and
``TIDEMILL_KAFKA_PORT=tcp://...`` for ``tidemill-kafka``. Docker's ``--link`` does the same. This
module must not know any setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SHAPES = re.compile(
    r"""TIDEMILL_(?:\w+_)?
    (?:
        SERVICE_HOST | SERVICE_PORT(?:_\w+)?
        | PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR|START|END|PORT_START|PORT_END))?
    )""",
    re.VERBOSE,
)
_URL = re.compile(r"(?:tcp|udp|sctp)://\S+")
_LINK_NAME = re.compile(r"(TIDEMILL_(?:\w+_)?)NAME")


def service_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that describe a service, in order."""
    links = tuple(
        f"{match[1]}ENV_"
        for name, text in environ.items()
        if (match := _LINK_NAME.fullmatch(name)) and text.startswith("/")
    )
    found = []
    for name, text in environ.items():
        # A setting can have the same name (TIDEMILL_KAFKA_PORT), but none has such a value.
        is_url = name.startswith("TIDEMILL_") and name.endswith("_PORT") and _URL.fullmatch(text)
        is_link = _LINK_NAME.fullmatch(name) and text.startswith("/")
        if is_url or is_link or _SHAPES.fullmatch(name) or name.startswith(links):
            found.append(name)
    return sorted(found)
