"""Parts of all sections of the settings: their base class, and types that several have.

Must not know a section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

INT, LONG = 2**31 - 1, 2**63 - 1
"""Upper limits of numbers: Kafka's int and long, which clients see them as."""


class Section(BaseModel):
    """A table of ``tidemill.toml``.

    Unknown keys are errors. So are nan and inf: nothing is above nan, and JSON has neither.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    key: ClassVar[str] = ""
    """The name of the table, where a protocol or a kind of worker declares it."""
    is_repeated: ClassVar[bool] = False
    """Whether the file has a list of these tables: ``[[key]]`` and not ``[key]``."""
    is_named: ClassVar[bool] = False
    """Whether the tables of the list have names: ``[key.NAME]`` and not ``[[key]]``."""

    refers_to: ClassVar[Mapping[str, str]] = {}
    """Fields with names of entries of another list, and the ``key`` of that list."""

    @property
    def entry_name(self) -> str:
        """The name of an entry of a list, if it has one. No other entry has the same."""
        return getattr(self, "name", None) or ""

    def relative_to(self, folder: Path) -> Self:
        """Return the section with paths that are relative to a folder."""
        paths = {name: value for name, value in self if isinstance(value, Path)}
        changed = {name: folder / path.expanduser() for name, path in paths.items()}
        return self.model_copy(update=changed)


def _host(name: str | None) -> str | None:
    """Check a host name or address. A URL or a port in it would reach clients and fail there.

    Raises:
        ValueError: it is not a host.
    """
    if name is None:
        return None
    is_address_6 = re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%\w+)?", name)
    if not is_address_6 and not re.fullmatch(r"[\w.-]+", name):
        raise ValueError("expected a host name or an address, without a scheme or a port")
    return name


HOST = AfterValidator(_host)
"""The check of a host name or an address."""


def host_and_port(text: str, port: int) -> tuple[str, int]:
    """Return host and port of ``HOST``, ``HOST:PORT`` or ``[ADDRESS]:PORT``.

    Args:
        text: the text.
        port: the port if it has none.

    Raises:
        ValueError: it has another form.
    """
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\s\[\]/]+))(?::(\d{1,5}))?", text)
    if found is None or int(found[3] or port) > 65535:
        raise ValueError("expected HOST:PORT, without a scheme")
    return found[1] or found[2], int(found[3] or port)


ListenerPort = Annotated[int, Field(ge=0, le=65535, description="TCP port; 0 picks a free one.")]
CertificateFile = Annotated[
    Path | None,
    Field(description="File with a PEM certificate chain. With it, the listener uses TLS."),
]
KeyFile = Annotated[Path | None, Field(description="File with the PEM private key of tls_cert.")]


class ListenerSection(Section):
    """The settings of a protocol that listens. A subclass sets the default of its port."""

    port: ListenerPort

    @property
    def label(self) -> str:
        """The name of its table, for errors."""
        return self.key

    def bind_host(self, default: str) -> str:
        """Return the address to listen on. ``default`` is the setting ``host``."""
        return default


def _joined(value: object) -> object:
    """Return a list of texts as one text, with commas."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return value


class SecureSection(ListenerSection):
    """The settings of a listener whose clients can prove who they are."""

    tls_cert: CertificateFile = None
    tls_key: KeyFile = None
    tls_client_auth: Literal["none", "requested", "required"] = Field(
        "none",
        description="Whether the listener asks clients for a certificate (ssl.client.auth).",
    )
    tls_client_ca: Path | None = Field(
        None,
        description="File with the PEM certificates of the authorities that sign the certificates "
        "of clients.",
    )
    tls_principal_rules: str = Field(
        "DEFAULT",
        description="Rules that make a user of the name in a client's certificate, as in Kafka "
        "(ssl.principal.mapping.rules): RULE:pattern/replacement/ with L or U, and DEFAULT, with "
        "commas.",
    )
    mechanisms: Annotated[str, BeforeValidator(_joined)] = Field(
        "",
        description="Mechanisms of SASL, with commas, by which clients log in; empty: see the "
        "guide about security (sasl.enabled.mechanisms).",
    )

    def security_protocol(self) -> str:
        """Return what Kafka clients call the protocol: ``security.protocol``."""
        inner = "PLAINTEXT" if self.tls_cert is None else "SSL"
        return f"SASL_{inner}" if self.mechanism_names() else inner

    def mechanism_names(self) -> tuple[str, ...]:
        """Return the mechanisms, in upper case."""
        names = (each.strip().upper() for each in self.mechanisms.split(","))
        return tuple(dict.fromkeys(each for each in names if each))
