"""The certificate of a server: from files that the settings name, or a self-signed one that it makes.

    configured     both files are loaded at the start; an error in them ends it
    self-signed    made for the first TLS peer, so that servers without any pay nothing:
                     DIRECTORY/self-signed.pem, when there is a valid one that has not expired
                     else a new one, by a process of its own (selfsigned.py), once in a store's life
                   kept with mode 0600; without a directory it lasts as long as the server

SDKs that use TLS by default accept any certificate; one for clients that verify must be configured.
Certificates in memory reach OpenSSL through pipes, since it takes nothing but paths: so no file is written
for them.

All of this blocks: the loop's thread calls `configured` alone, before it serves.
"""

import datetime
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import WhimbrelError
from whimbrel.model.route import WILDCARD_HOSTS
from whimbrel.rpc.server.tls import new_context, reason

__all__ = ["FILE_NAME", "CertificateError", "TlsSettings", "configured", "self_signed"]

FILE_NAME = "self-signed.pem"
FILE_BYTES_MAX = 64 << 10  # all of it must fit into a pipe's buffer
MAKE_S_MAX = 30.0  # a fraction of a second on an idle machine
EXPIRES = re.compile(rb"expires (\S+)\n")
SELF = ("localhost", "127.0.0.1", "::1")

logger = logging.getLogger(__name__)


class CertificateError(WhimbrelError):
    """A server's certificate can't be used or made."""

    reason = "CERTIFICATE"
    effect = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Where a server's certificate is.

    Attributes:
        certificate, key: paths of PEM files; both or none.
        directory: where a self-signed one is kept when they are empty; None keeps it in memory.
    """

    certificate: str = ""
    key: str = ""
    directory: Path | None = None


def configured(settings: TlsSettings) -> ssl.SSLContext | None:
    """Return the context of the configured files; None when none are.

    Raises:
        CertificateError: they can't be used; the text says what to do.
    """
    if not settings.certificate:
        return None
    pair = f"tls_certificate {settings.certificate} with tls_key {settings.key}"
    try:
        for path in (settings.certificate, settings.key):
            with Path(path).open("rb"):  # OpenSSL does not say which one it can't read
                pass
        return new_context(settings.certificate, settings.key)
    except ssl.SSLError as error:
        raise CertificateError(
            f"{pair}: {reason(error)}: name PEM files, a certificate and its own key without password"
        ) from error
    except OSError as error:
        raise CertificateError(
            f"{pair}: {error.strerror}: {error.filename}: the process must be able to read both files"
        ) from error


def self_signed(settings: TlsSettings, host: str, now: Callable[[], datetime.datetime]) -> ssl.SSLContext:
    """Return the context of a self-signed certificate: the kept one, or a new one, which is kept then.

    Args:
        settings: where it is kept.
        host: what the server is bound to; one of the names in a new one.
        now: the time, with its zone.

    Raises:
        CertificateError: none can be made.
    """
    path = None if settings.directory is None else settings.directory / FILE_NAME
    if path is not None and (kept := load_kept(path, now())) is not None:
        return kept
    data = make_certificate(host)
    context = load(data)
    if path is not None:
        try:
            keep(path, data)
        except OSError as error:
            logger.warning("the new certificate is not kept, %s can't be written: %s", path, error.strerror)
            return context
        logger.info("a self-signed certificate is kept in %s", path)
    return context


def load_kept(path: Path, now: datetime.datetime) -> ssl.SSLContext | None:
    """Return the context of a kept certificate; None when there is none that can be used."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        found = EXPIRES.match(data)
        if found is None:
            raise ValueError("it does not say when it expires")
        if datetime.datetime.fromisoformat(found[1].decode()) <= now:
            raise ValueError("it has expired")
        return load(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, CertificateError) as error:
        logger.warning("%s is of no use, another certificate takes its place: %s", path, error)
        return None


def load(data: bytes) -> ssl.SSLContext:
    """Return the context of the certificate and key in `data`.

    Raises:
        CertificateError: there are none.
    """
    if len(data) > FILE_BYTES_MAX:
        raise CertificateError(f"a certificate of more than {FILE_BYTES_MAX} bytes")
    with ExitStack() as stack:
        paths = []
        for _ in range(2):  # OpenSSL opens the certificate's path and the key's
            reading, writing = os.pipe()
            stack.callback(os.close, reading)
            os.write(writing, data)
            os.close(writing)
            paths.append(f"/dev/fd/{reading}")
        try:
            return new_context(*paths)
        except (ssl.SSLError, OSError) as error:
            raise CertificateError(f"no certificate and key: {error}") from error


def make_certificate(host: str) -> bytes:
    """Make a new certificate and key in a short-lived process.

    Raises:
        CertificateError: that failed.
    """
    own = host if host not in WILDCARD_HOSTS else socket.gethostname()
    names = dict.fromkeys((own, *SELF))
    command = [sys.executable, "-P", str(Path(__file__).with_name("selfsigned.py")), *names]
    try:
        done = subprocess.run(command, capture_output=True, timeout=MAKE_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        last = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()[-1:]
        raise CertificateError(
            f"no self-signed certificate can be made: {' '.join(last) or error}; "
            "name one by tls_certificate and tls_key"
        ) from error
    return done.stdout


def keep(path: Path, data: bytes) -> None:
    """Write a file that no other user can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    with suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
