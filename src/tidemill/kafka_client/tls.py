"""Makes TLS contexts of librdkafka's settings. Must not know: requests, ranges, Spark."""

from __future__ import annotations

import ssl
from pathlib import Path

from tidemill.kafka_client.settings import ConnectionSettings


def make_context(settings: ConnectionSettings) -> ssl.SSLContext:
    """Return the context for connections to brokers.

    Args:
        settings: The settings.

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
    if settings.certificate_location:
        context.load_cert_chain(
            settings.certificate_location, settings.key_location, settings.key_password
        )
    if settings.identification == "none":
        context.check_hostname = False
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
