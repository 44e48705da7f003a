"""TLS of listeners: contexts, and certificates that are read again. Knows no protocol.

OpenSSL's errors name neither the file nor what is wrong with it, and it asks for a passphrase on
the terminal. So the files are looked at before.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from pathlib import Path

import structlog

from tidemill.errors import SettingsError
from tidemill.settings.section import SecureSection

log = structlog.get_logger("tidemill.listener")

MAX_FILE_BYTES = 1 << 20
_OTHERS = 0o007
_FLIGHTS = 8
"""Most times that a side of a handshake sends something."""
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----")


class ListenerTls:
    """The certificate and the key of one listener.

    Args:
        section: the section of the settings that names them, for messages.
        certificate: PEM file with the certificate chain; None: plain text.
        key: PEM file with the private key; None if it is in ``certificate``.
        client_auth: whether clients show a certificate: ``none``, ``requested`` or ``required``.
        client_ca: PEM file with the authorities of clients' certificates.

    Attributes:
        is_strange: whether clients that trust the certificate file as it was before the last reload
            refuse the certificate that it has now. They must read the file again.
    """

    def __init__(
        self,
        section: str,
        certificate: Path | None,
        key: Path | None,
        client_auth: str = "none",
        client_ca: Path | None = None,
    ) -> None:
        self._section = section
        self._certificate = certificate
        self._key = key
        self._client_auth = client_auth
        self._client_ca = client_ca
        self._seen = self._stamps()
        self._read = self._seen
        self._last: tuple[str, ssl.SSLContext] | None = None
        self.is_strange = False

    @classmethod
    def of(cls, section: SecureSection) -> ListenerTls:
        """Return those that the settings of a listener name."""
        return cls(
            section.label,
            section.tls_cert,
            section.tls_key,
            section.tls_client_auth,
            section.tls_client_ca,
        )

    @property
    def is_used(self) -> bool:
        """Whether connections are encrypted."""
        return self._certificate is not None

    def context(self) -> ssl.SSLContext | None:
        """Return a context for new connections; None for plain text.

        Raises:
            SettingsError: see ``server_context``; or there is a key without a certificate, or one
                of ``tls_client_auth`` and ``tls_client_ca`` without the other.
        """
        self._check_clients()
        if self._certificate is not None:
            context = server_context(self._certificate, self._key, self._section)
            if self._client_ca is not None:
                _ask_clients(context, self._client_auth, self._client_ca, self._section)
            text = _read(self._certificate, "TLS certificate", self._section)
            self._last = text, context
            return context
        if self._key is not None:
            name = self._section
            raise SettingsError(
                f"{name}.tls_key is set and {name}.tls_cert is not: connections would be plain "
                "text",
                hint=f"Set {name}.tls_cert too, or remove {name}.tls_key.",
            )
        return None

    def _check_clients(self) -> None:
        name, asks = self._section, self._client_auth != "none"
        if asks and (self._certificate is None or self._client_ca is None):
            missing = "tls_cert" if self._certificate is None else "tls_client_ca"
            raise SettingsError(
                f"{name}.tls_client_auth is set and {name}.{missing} is not",
                hint=f"Set {name}.{missing}: clients show certificates within TLS, and one of the "
                "authorities in tls_client_ca must have signed them.",
            )
        if self._client_ca is not None and not asks:
            raise SettingsError(
                f"{name}.tls_client_ca is set and {name}.tls_client_auth is not: no certificate "
                "would be checked",
                hint=f'Set {name}.tls_client_auth = "required", or "requested".',
            )

    def has_changed(self) -> bool:
        """Return whether the files are others than those that were read last.

        A change counts when two looks find the same, so that files which are being replaced one
        after the other are not read in between.
        """
        seen, before = self._stamps(), self._seen
        self._seen = seen
        if seen != before or seen == self._read:
            return False
        self._read = seen
        return True

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """Return what changes when a file is replaced or written, for each file."""
        return [_stamp(path) for path in (self._certificate, self._key, self._client_ca) if path]

    def reloaded(self) -> ssl.SSLContext | None:
        """Read certificate and key again; return None if there are none, or if they are invalid.

        The result is logged.
        """
        path, before = self._certificate, self._last
        if path is None:
            return None
        try:
            context = self.context()
        except (SettingsError, OSError) as error:  # a file can vanish between two looks at it
            log.error(
                "tls.reload_failed",
                error=str(error),
                hint=getattr(error, "hint", "") or "The old certificate stays in use.",
            )
            return None
        # Where the file of before did not vouch for its own certificate, clients trust another one.
        if before is not None and context is not None:
            self.is_strange = accepts(*before) and not accepts(before[0], context)
        log.info("tls.reloaded", certificate=str(path), fingerprint=fingerprint(path))
        return context


def server_context(certificate: Path, key: Path | None, section: str = "kafka") -> ssl.SSLContext:
    """Return a context for a server that shows a certificate and asks for none.

    Args:
        certificate: PEM file with the certificate chain.
        key: PEM file with the private key; None if it is in ``certificate``.
        section: the section of the settings that names them, for hints.

    Raises:
        SettingsError: a file can't be read or is not what it should be, the key can be read by
            other users, or certificate and key do not fit together.
    """
    chain = _read(certificate, "TLS certificate", section)
    blocks = _BLOCK.findall(chain)
    if "CERTIFICATE" not in blocks:
        raise SettingsError(
            f"{certificate} has no certificate: {_contents(blocks, chain)}",
            hint=f"{section}.tls_cert is a PEM file with the certificate, then those that signed "
            f"it. {section}.tls_key is the file with the private key.",
        )
    key_file = certificate if key is None else key
    text = chain if key is None else _read(key, "TLS key", section)
    _check_key(key_file, text, section, separate=key is not None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(
                f"the TLS key {key_file} does not belong to the certificate {certificate}",
                hint="The first certificate in the file must be the broker's own.",
            ) from error
        reason = (error.reason or str(error)).lower().replace("_", " ")
        raise SettingsError(
            f"the TLS certificate {certificate} and the key {key_file} can't be used: {reason}"
        ) from error
    except OSError as error:
        raise _unreadable("TLS certificate or key", certificate, error, section) from error
    return context


def accepts(trusted: str, server: ssl.SSLContext) -> bool:
    """Return whether a client that trusts some certificates accepts that of a server.

    Args:
        trusted: PEM text.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=trusted)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_FLIGHTS):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
            if side is ours:
                return True
    return False


def _ask_clients(context: ssl.SSLContext, how: str, authorities: Path, section: str) -> None:
    """Let a context ask clients for a certificate that one of the authorities has signed."""
    try:
        with authorities.open("rb"):
            context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        raise SettingsError(
            f"{authorities} has no certificates of authorities",
            hint=f"{section}.tls_client_ca is a PEM file.",
        ) from error
    except OSError as error:
        raise _unreadable("TLS authorities", authorities, error, section) from error
    context.verify_mode = ssl.CERT_REQUIRED if how == "required" else ssl.CERT_OPTIONAL


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 fingerprint of the first certificate in a PEM file, or an empty text."""
    try:
        text = certificate.read_text("ascii", "replace")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        end = text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")
        return "sha256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin:end])).hexdigest()
    except (OSError, ValueError):
        return ""


def _read(path: Path, what: str, section: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(what, path, error, section) from error
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(f"{path} is not a {what}: it has more than {MAX_FILE_BYTES} bytes")
    return data.decode("latin-1")


def _unreadable(what: str, path: Path, error: OSError, section: str) -> SettingsError:
    return SettingsError(
        f"can't read the {what} {path}: {(error.strerror or str(error)).lower()}",
        hint=f"The broker's user must be able to read {section}.tls_cert and {section}.tls_key.",
    )


def _contents(blocks: list[str], text: str) -> str:
    if blocks:
        return f"it has {blocks[0].lower()}"
    if not text.strip():
        return "it is empty"
    return "it is not a PEM file"


def _check_key(path: Path, text: str, section: str, *, separate: bool) -> None:
    blocks = _BLOCK.findall(text)
    keys = [block for block in blocks if block.endswith("PRIVATE KEY")]
    if not keys and not separate:
        raise SettingsError(
            f"{path} has a certificate and no private key",
            hint=f"Set {section}.tls_key to the PEM file with its private key.",
        )
    if not keys:
        raise SettingsError(
            f"{path} has no private key: {_contents(blocks, text)}",
            hint=f"{section}.tls_key is the PEM file with the private key of {section}.tls_cert.",
        )
    if keys[0].startswith("ENCRYPTED") or "Proc-Type: 4,ENCRYPTED" in text:
        raise SettingsError(
            f"the TLS key {path} needs a passphrase, which is not supported",
            hint="Make one without, for the broker only: openssl pkey -in FILE -out FILE",
        )
    mode = path.stat().st_mode & 0o777
    if mode & _OTHERS:
        raise SettingsError(
            f"all users of this machine can use the TLS key {path}: its mode is {mode:04o}",
            hint=f"Run chmod 600 {path}; if the broker has another user, also chown it.",
        )


def _no_passphrase() -> str:
    raise SettingsError("the TLS key needs a passphrase, which is not supported")
