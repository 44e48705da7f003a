"""Makes TLS contexts of librdkafka's settings. Must not know: requests, ranges, Spark."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.kafka_client.settings import ConnectionSettings


def make_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """Return the context for connections to brokers.

    Raises:
        OSError: A certificate or key can't be read. ``ssl.SSLError`` is an OSError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    location = settings.ca_location if settings.ca_location != "probe" else ""
    if location:
        is_folder = Path(location).is_dir()
        context.load_verify_locations(
            cafile=None if is_folder else location, capath=location if is_folder else None
        )
    if settings.ca_pem:
        context.load_verify_locations(cadata=settings.ca_pem)
    if not location and not settings.ca_pem:
        context.load_default_certs()
    if settings.crl_location:
        context.load_verify_locations(cafile=settings.crl_location)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    if settings.ciphers:
        context.set_ciphers(settings.ciphers)
    if settings.certificate_location or settings.certificate_pem:
        with (
            _file(settings.certificate_location, settings.certificate_pem) as certificate,
            _file(settings.key_location, settings.key_pem) as key,
        ):
            context.load_cert_chain(certificate, key, settings.key_password)
    if settings.identification == "none":
        context.check_hostname = False
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def _file(location: str, pem: str) -> Iterator[str]:
    """Give the path of a file: OpenSSL reads certificates and keys of its own from files only."""
    if location:
        yield location
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # only its owner can read it
        file.write(pem)
        file.flush()
        yield file.name
