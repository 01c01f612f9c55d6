"""Certificates for tests of TLS with an authority: files of a server on the loopback, and of a client."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

__all__ = ["Tls"]

VALID = datetime.timedelta(days=1)  # before and after now


class Tls:
    """An authority, and what it has signed.

    Attributes:
        ca: PEM file of the authority's certificate.
        server, server_key: PEM files of a server at 127.0.0.1.
        client, client_key: of a client whose common name is `client`.
    """

    def __init__(self, root: Path) -> None:
        """Write all of it into a new folder."""
        root.mkdir()
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = common_name("test authority")
        self.ca = root / "ca.pem"
        own = self.builder("test authority", self.key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.ca.write_bytes(own.sign(self.key, SHA256()).public_bytes(Encoding.PEM))
        self.server, self.server_key = self.sign(root, "server")
        self.client, self.client_key = self.sign(root, "client")

    def builder(self, name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        """Return a certificate that is still to be signed."""
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(common_name(name))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - VALID)
            .not_valid_after(now + VALID)
        )

    def sign(self, root: Path, name: str) -> tuple[Path, Path]:
        """Write a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        signed = (
            self.builder(name, key)
            .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
            .sign(self.key, SHA256())
        )
        certificate_file, key_file = root / f"{name}.pem", root / f"{name}.key"
        certificate_file.write_bytes(signed.public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate_file, key_file


def common_name(name: str) -> x509.Name:
    """Return a name as certificates have it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
