"""TLS of real processes: the certificate that a store keeps, and a start without a usable one."""

import socket
import ssl
from pathlib import Path

import pytest

from support.cluster.processes import Process, StartFailed

pytestmark = pytest.mark.process


def shown(address: str) -> bytes:
    """Return the certificate that a port shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)), 10)) as connection:
        assert connection.selected_alpn_protocol() == "h2"
        return connection.getpeercert(binary_form=True) or b""


def test_broker_shows_the_same_certificate_after_a_restart(tmp_path: Path) -> None:
    with Process(tmp_path, "broker", "a", store=tmp_path / "store") as broker:
        kept = tmp_path / "store" / "whimbrel" / "self-signed.pem"
        assert not kept.exists()  # nobody came with TLS
        first = shown(broker.grpc)
        assert kept.stat().st_mode & 0o777 == 0o600
        broker.kill()
        assert shown(broker.start().grpc) == first


def test_certificate_that_can_t_be_read_ends_the_start_with_what_to_do(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    settings = {"tls_certificate": missing, "tls_key": missing}
    with pytest.raises(StartFailed) as caught, Process(tmp_path, "nameserver", "ns", **settings):
        pass
    assert f"No such file or directory: {missing}: the process must be able to read both" in str(caught.value)
    assert "code 1" in str(caught.value)
