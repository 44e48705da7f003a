"""Makes the name of a client's certificate, and that of a principal by rules as Kafka has them.

The name is that of RFC 2253, as Java writes it: ``CN=alice,OU=People,O=Example``, the most specific
part first. Must not know: sockets, files.
Source: KIP-371, Apache Kafka's ``SslPrincipalMapper``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.errors import SettingsError
from tidemill.protocols.logins.contract import LoginFailedError

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""The keywords of RFC 2253. Other attributes have their numbers."""
_NUMBERS = {
    "emailAddress": ("1.2.840.113549.1.9.1", 0x16),
    "serialNumber": ("2.5.4.5", 0x13),
    "surname": ("2.5.4.4", 0x0C),
    "givenName": ("2.5.4.42", 0x0C),
    "title": ("2.5.4.12", 0x0C),
    "pseudonym": ("2.5.4.65", 0x0C),
    "dnQualifier": ("2.5.4.46", 0x13),
}
"""Number and ASN.1 type of attributes without a keyword: their values are hexadecimal."""
_LONGEST_NAME = 4096
_RULE = re.compile(
    r"(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<new>(?:\\.|[^\\/])*)/(?P<case>[LU]?)"
)
_REFERENCE = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)


def distinguished_name(certificate: Mapping[str, Any] | None) -> str:
    """Return the subject of a certificate; an empty text without one.

    Args:
        certificate: as ``ssl.SSLSocket.getpeercert`` returns it.
    """
    subject: Sequence[Sequence[tuple[str, str]]] = (certificate or {}).get("subject", ())
    parts = ("+".join(_attribute(*each) for each in part) for part in reversed(subject))
    return ",".join(parts)


def _attribute(name: str, value: str) -> str:
    if name in _SHORT:
        return f"{_SHORT[name]}={_escaped(value)}"
    number, kind = _NUMBERS.get(name, (name, 0x0C))
    data = value.encode()
    size = len(data)
    length = bytes([size]) if size < 128 else _long_length(size)
    return f"{number}=#{(bytes([kind]) + length + data).hex()}"


def _long_length(size: int) -> bytes:
    """Return a length of 128 or more in DER: in as few bytes as possible (X.690, 10.1)."""
    data = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(data)]) + data


def _escaped(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and escaped != "\\ ":
        escaped = escaped[:-1] + "\\ "
    return escaped


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule; ``pattern`` None is DEFAULT: the name as it is."""

    pattern: re.Pattern[str] | None
    template: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the name of the principal; None if the whole name does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        groups = ("", *(group or "" for group in found.groups()))

        def reference(each: re.Match[str]) -> str:
            return each[1] if each[1] is not None else groups[int(each[2])]

        made = _REFERENCE.sub(reference, self.template)
        return {"L": made.lower, "U": made.upper}.get(self.case, lambda: made)()


class PrincipalRules:
    """Rules that make a principal's name of a certificate's. The first that matches counts.

    Args:
        text: ``RULE:pattern/replacement/[LU]`` and ``DEFAULT``, with commas.
        setting: its name, for errors.

    Raises:
        SettingsError: a rule is malformed.
    """

    def __init__(self, text: str, setting: str = "tls_principal_rules") -> None:
        self._rules: list[_Rule] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            end = found.end() if found else position
            following = re.compile(r"\s*(?:,\s*|$)").match(text, end)
            if found is None or following is None:
                raise SettingsError(
                    f"invalid rule in {setting}: {text[position:][:80]!r}",
                    hint="Expected DEFAULT, or RULE:pattern/replacement/ with L or U behind it, "
                    "with commas in between.",
                )
            self._rules.append(_parsed(found, setting))
            position = following.end()

    def principal(self, name: str) -> str:
        """Return the name of the principal.

        Args:
            name: the distinguished name of a certificate.

        Raises:
            LoginFailedError: no rule matches.
        """
        if len(name) <= _LONGEST_NAME:
            for rule in self._rules:
                made = rule.apply(name)
                if made:
                    return made
        raise LoginFailedError("no rule of tls_principal_rules matches the certificate", name)


def _parsed(found: re.Match[str], setting: str) -> _Rule:
    if found["default"]:
        return _Rule(None)
    try:
        pattern = re.compile(found["pattern"])
    except re.error as error:
        raise SettingsError(
            f"invalid pattern {found['pattern']!r} in {setting}: {error}",
            hint="It is a regular expression that matches the whole name.",
        ) from error
    for each in _REFERENCE.finditer(found["new"]):
        if each[2] is not None and not 0 < int(each[2]) <= pattern.groups:
            raise SettingsError(
                f"invalid replacement {found['new']!r} in {setting}: the pattern has "
                f"{pattern.groups} groups",
                hint="$1 is what the first pair of parentheses matches.",
            )
    return _Rule(pattern, found["new"], found["case"])
