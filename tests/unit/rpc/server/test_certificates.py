"""Where a server's certificate comes from, how long it is kept, and what is told when there is none."""

import datetime
import logging
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from whimbrel.broker.options import BrokerOptions
from whimbrel.config import ConfigError, load
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.rpc.server.certificates import FILE_NAME, CertificateError, TlsSettings, configured, self_signed
from whimbrel.rpc.server.selfsigned import VALID_DAYS, make

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


def kept(directory: Path, *, days: float = 0.0, host: str = "::") -> bytes:
    """Return the file of a server that starts `days` from now."""
    later = NOW + datetime.timedelta(days=days)
    self_signed(TlsSettings(directory=directory), host, lambda: later)
    return (directory / FILE_NAME).read_bytes()


@pytest.fixture
def made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make certificates in this process, and not in one of their own."""
    monkeypatch.setattr("whimbrel.rpc.server.certificates.make_certificate", lambda host: make([host], NOW))


def test_one_is_made_by_a_process_of_its_own_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    data = kept(tmp_path / "config", host="192.0.2.9")
    assert stat.S_IMODE((tmp_path / "config" / FILE_NAME).stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "config").iterdir()] == [FILE_NAME]
    certificate = x509.load_pem_x509_certificate(data)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name) for name in names.get_values_for_type(x509.IPAddress)] == [
        "192.0.2.9",
        "127.0.0.1",
        "::1",
    ]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    certificate.verify_directly_issued_by(certificate)


@pytest.mark.usefixtures("made_here")
def test_it_is_used_again_until_it_expires(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = kept(tmp_path)
    assert kept(tmp_path, days=VALID_DAYS - 1) == first
    assert caplog.messages == []
    assert kept(tmp_path, days=VALID_DAYS + 1) != first
    assert "it has expired" in caplog.text


@pytest.mark.usefixtures("made_here")
@pytest.mark.parametrize(
    "data", [b"", b"expires soon\n", b"expires 2036-01-01T00:00:00+00:00\n", b"x" * 70_000]
)
def test_a_file_of_no_use_is_replaced_and_told_of(
    data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    assert b"BEGIN CERTIFICATE" in kept(tmp_path)
    assert "another certificate takes its place" in caplog.text


@pytest.mark.usefixtures("made_here")
def test_without_a_place_to_keep_it_one_lasts_as_long_as_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert self_signed(TlsSettings(), "::", lambda: NOW).cert_store_stats()
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        self_signed(TlsSettings(directory=tmp_path / "file"), "::", lambda: NOW)
    assert "is not kept" in caplog.text


def test_without_the_library_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(CertificateError, match="tls_certificate and tls_key"):
        self_signed(TlsSettings(), "::", lambda: NOW)


def test_configured_files_are_used(certificate: Path) -> None:
    assert configured(TlsSettings()) is None
    assert isinstance(
        configured(TlsSettings(certificate=str(certificate), key=str(certificate))), ssl.SSLContext
    )


def key_of(path: Path) -> bytes:
    """Return the key of a file, without what stands before it."""
    data = path.read_bytes()
    return data[data.index(b"-----") :]


def test_configured_files_that_can_t_be_used_say_so(certificate: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(make(["localhost"], NOW))
    with pytest.raises(CertificateError, match=r"key values mismatch.*its own key"):
        configured(TlsSettings(certificate=str(certificate), key=str(other)))
    other.write_bytes(b"nothing")
    with pytest.raises(CertificateError, match="name PEM files"):
        configured(TlsSettings(certificate=str(other), key=str(other)))
    locked = load_pem_private_key(key_of(certificate), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    other.write_bytes(locked)
    with pytest.raises(CertificateError, match="the key needs a password"):
        configured(TlsSettings(certificate=str(certificate), key=str(other)))
    with pytest.raises(
        CertificateError, match=r"No such file.*missing\.pem: the process must be able to read"
    ):
        configured(TlsSettings(certificate=str(certificate), key=str(tmp_path / "missing.pem")))


@pytest.mark.parametrize("options", [BrokerOptions, NameserverOptions])
def test_settings_that_can_t_work_are_refused(options: Any) -> None:
    words = ["--store", "s"] if options is BrokerOptions else []
    named = [*words, "--tls-certificate", "c.pem"]
    with pytest.raises(ConfigError, match="belong together"):
        load(options, named, {})
    assert load(options, [*named, "--tls-key", "k.pem"], {}).tls_key == "k.pem"
