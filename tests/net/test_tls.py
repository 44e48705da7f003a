"""TLS contexts: each mistake with certificate files is told as what it is."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.support.certificates import signed_by
from tidemill.errors import SettingsError
from tidemill.net.tls import MAX_FILE_BYTES, ListenerTls, fingerprint, server_context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")

NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]


def make(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """Make a certificate and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", *NEW_KEY, *(options or ("-nodes",)), "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    return cert, key


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make(tmp_path_factory.mktemp("tls"), "a")


def refused(certificate: Path, key: Path | None) -> str:
    with pytest.raises(SettingsError) as error:
        server_context(certificate, key)
    return f"{error.value}\n{error.value.hint}"


def test_a_certificate_and_its_key_in_one_file_or_two(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.touch(0o600)
    both.write_bytes(pair[1].read_bytes() + pair[0].read_bytes())
    assert isinstance(server_context(*pair), ssl.SSLContext)
    assert isinstance(server_context(both, None), ssl.SSLContext)
    assert fingerprint(pair[0]) == fingerprint(both)
    assert fingerprint(pair[0]).startswith("sha256:")
    assert fingerprint(pair[1]) == ""


def test_a_certificate_without_a_key(pair: tuple[Path, Path]) -> None:
    text = refused(pair[0], None)
    assert "a.pem has a certificate and no private key" in text
    assert "kafka.tls_key" in text


def test_exchanged_files(pair: tuple[Path, Path]) -> None:
    assert "a.key has no certificate: it has private key" in refused(pair[1], pair[0])


def test_a_key_of_another_certificate(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, other = make(tmp_path, "b")
    assert "b.key does not belong to the certificate" in refused(pair[0], other)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_key_that_others_can_use(pair: tuple[Path, Path], tmp_path: Path, mode: int) -> None:
    key = tmp_path / "open.key"
    key.write_bytes(pair[1].read_bytes())
    key.chmod(mode)
    assert f"its mode is {mode:04o}" in refused(pair[0], key)
    key.chmod(0o640)  # the group is a choice, as of Debian's ssl-cert
    server_context(pair[0], key)


def test_a_key_with_a_passphrase_never_asks_on_the_terminal(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "locked", "-passout", "pass:secret")
    assert "needs a passphrase" in refused(cert, key)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\x30\x82\x01\x00" + bytes(100), "not a PEM file"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\n", "it has certificate request"),
        (b"x" * (MAX_FILE_BYTES + 1), "has more than"),
    ],
)
def test_another_file_is_named(
    pair: tuple[Path, Path], tmp_path: Path, content: bytes, said: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(content)
    wrong.chmod(0o600)
    for text in (refused(wrong, pair[1]), refused(pair[0], wrong)):
        assert said in text
        assert str(wrong) in text


def test_a_damaged_certificate_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    text = pair[0].read_text()
    damaged = tmp_path / "damaged.pem"
    damaged.write_text(text[:100] + text[140:])
    assert str(damaged) in refused(damaged, pair[1])


def test_a_missing_file_and_a_folder_are_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "gone", None)
    assert "is a directory" in refused(pair[0], tmp_path)


def replace(chain: Path, key: Path, by: tuple[Path, Path]) -> None:
    for old, new in zip((chain, key), by, strict=True):
        old.write_bytes(new.read_bytes())
    key.chmod(0o600)


def test_a_new_certificate_is_strange_unless_the_file_of_before_vouches_for_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    authority = make(tmp_path, "authority")
    pairs = []
    for name in ("one", "two"):
        cert, key = signed_by(authority, tmp_path / name, f"/CN={name}")
        cert.write_text(cert.read_text() + authority[0].read_text())
        pairs.append((cert, key))
    alone = make(tmp_path, "alone")
    chain, key = tmp_path / "chain.pem", tmp_path / "chain.key"
    replace(chain, key, pairs[0])
    tls = ListenerTls("kafka", chain, key)
    tls.context()
    seen = []
    for each in (pairs[1], pairs[1], alone, alone, pairs[0]):
        replace(chain, key, each)
        assert tls.reloaded() is not None
        seen.append(tls.is_strange)
    assert seen == [False, False, True, False, True]


def test_a_certificate_whose_file_vouches_for_none_is_not_strange(tmp_path: Path) -> None:
    """Clients trust another file, and this one says nothing about them."""
    authority = make(tmp_path, "authority")
    cert, key = signed_by(authority, tmp_path, "/CN=one")
    tls = ListenerTls("kafka", cert, key)
    tls.context()
    replace(cert, key, make(tmp_path, "alone"))
    assert tls.reloaded() is not None
    assert not tls.is_strange
