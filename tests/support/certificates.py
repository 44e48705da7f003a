"""Makes self-signed certificates with the openssl program."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for localhost and 127.0.0.1, and of its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    key.chmod(0o600)
    return cert, key


def signed_by(authority: tuple[Path, Path], folder: Path, subject: str) -> tuple[Path, Path]:
    """Return the files of a client's certificate that an authority has signed, and of its key.

    Args:
        authority: its certificate and its key.
        subject: the name, as ``/O=Example/CN=carol``.
    """
    cert, key, asked = folder / "client.pem", folder / "client-key.pem", folder / "client.csr"
    new = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    sign = "openssl x509 -req -days 2 -CAcreateserial"
    commands = [
        [*new.split(), "-subj", subject, "-keyout", str(key), "-out", str(asked)],
        [*sign.split(), "-CA", str(authority[0]), "-CAkey", str(authority[1])],
    ]
    commands[1] += ["-in", str(asked), "-out", str(cert)]
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key
