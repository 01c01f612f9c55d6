"""`python selfsigned.py NAME...`: writes a self-signed certificate and its key to standard output.

A process of its own (`certificates.py` starts it, once in the life of a store): the library that makes them
would cost a server start-up time and memory for as long as it runs. Nothing secret goes through arguments or
to a disk. It imports nothing of ours, so it is run by its path.

    expires 2036-11-22T00:00:00+00:00       for readers without that library; PEM allows text outside
    -----BEGIN PRIVATE KEY-----             P-256: cheap to make, and known to all TLS clients
    -----BEGIN CERTIFICATE-----             for server names and addresses: NAME...
"""

import datetime
import ipaddress
import sys
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["make"]

VALID_DAYS = 3650
EARLIER = datetime.timedelta(days=1)  # clocks of clients differ


def make(names: Sequence[str], now: datetime.datetime) -> bytes:
    """Return a certificate for `names` (hosts and addresses) and its key, valid from `now` on."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "whimbrel, self-signed")])
    expires = (now + datetime.timedelta(days=VALID_DAYS)).replace(microsecond=0)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(expires)
        .add_extension(x509.SubjectAlternativeName([general_name(each) for each in names]), critical=False)
        .add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )  # it may be trusted as a root
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, SHA256())
    )
    return b"".join(
        (
            f"expires {expires.isoformat()}\n".encode(),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            certificate.public_bytes(Encoding.PEM),
        )
    )


def general_name(text: str) -> x509.GeneralName:
    """Return a host's name or address in the form of certificates."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


if __name__ == "__main__":
    sys.stdout.buffer.write(make(sys.argv[1:], datetime.datetime.now(datetime.UTC)))
