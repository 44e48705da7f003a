"""A TLS context from librdkafka's properties. Knows no broker and no request."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from tidemill.cli.output import UsageError

_SUPPORTED = {
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
}


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context that the properties describe; None if they ask for plain text.

    Raises:
        UsageError: they ask for SASL, or have a TLS property that is not supported here.
    """
    protocol = properties.get("security.protocol", "plaintext").lower()
    if protocol == "plaintext":
        return None
    if protocol != "ssl":
        raise UsageError(
            f"security.protocol={protocol} is not supported by this command: use PLAINTEXT or SSL",
            hint="It can't log in with SASL; use a listener without it, "
            "or Kafka's own kafka-transactions.sh.",
        )
    for name in properties:
        if name.startswith("ssl.") and name not in _SUPPORTED:
            raise UsageError(
                f"--property {name} is not supported by this command",
                hint=f"Supported are {', '.join(sorted(_SUPPORTED))}.",
            )
    return _make_context(properties)


def _make_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    certificate, key = (properties.get(f"ssl.{n}.location") for n in ("certificate", "key"))
    try:
        context = ssl.create_default_context(
            cafile=properties.get("ssl.ca.location"), cadata=properties.get("ssl.ca.pem")
        )
        if certificate:
            context.load_cert_chain(certificate, key, properties.get("ssl.key.password"))
    except OSError as error:
        raise UsageError(f"--property: TLS can't be set up: {error}") from error
    if properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
