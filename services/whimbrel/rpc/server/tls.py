"""TLS of one connection as bytes in, bytes out, through OpenSSL's memory buffers. No socket, no loop.

    ciphertext ──► receive ──► plaintext        send(plaintext), handshake, alerts ──► take() ──► ciphertext

    hello ──(ClientHello: offers h2, or no protocols at all)──► handshake ──► established ──► ended
       │                                                            │              │
       └──(offers others only)──► no_application_protocol ──► failed ◄─────────────┘ (OpenSSL refuses)

The ClientHello is parsed before OpenSSL sees it, for its ALPN extension alone (RFC 7301): Python's binding
goes on without a protocol where none is in common, and the peer would then speak HTTP/1.1 to us. A peer that
offers none is let in: what it sends next tells what it speaks. All other faults of a ClientHello are left to
OpenSSL.

**Bounds.** A ClientHello has at most `HELLO_BYTES_MAX`; of later records OpenSSL holds one that is not whole.
`take` returns what was written since the last call; callers write it after each call. Peers may not
renegotiate. The time that a handshake may take is bounded by the owner of the session.
"""

import ssl
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "HANDSHAKE_RECORD",
    "HELLO_BYTES_MAX",
    "PROTOCOL",
    "HelloReader",
    "TlsSession",
    "new_context",
    "reason",
]

PROTOCOL = "h2"
HANDSHAKE_RECORD = 0x16  # the first byte of TLS, and of nothing else that comes to this port
CLIENT_HELLO = 1
ALPN = 16

RECORD_HEAD_BYTES, HELLO_HEAD_BYTES = 5, 4
HELLO_BYTES_MAX = 32 << 10  # with the keys of several post-quantum groups they have 2 KiB
RECORD_BYTES_MAX = 1 << 14  # of plaintext: what one read gives at most

# Alert record, TLS 1.2 (as all versions say here), 2 bytes: fatal, no_application_protocol.
NO_APPLICATION_PROTOCOL = bytes((21, 3, 3, 0, 2, 2, 120))


def new_context(certificate: Path | str, key: Path | str) -> ssl.SSLContext:
    """Return the context of a server's sessions.

    Args:
        certificate: path of a PEM file: the certificate, and those that it is signed by.
        key: path of a PEM file with its key, which must not need a password.

    Raises:
        OSError: a file can't be read.
        ssl.SSLError: they are no certificate and key, or do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([PROTOCOL])
    # OpenSSL would ask at the terminal, if there is one.
    context.load_cert_chain(certificate, key, password=no_password)
    return context


def no_password() -> str:
    """Refuse a key that needs a password."""
    raise ssl.SSLError("the key needs a password, and there is nobody to ask")


def reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason as words."""
    return (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()


class TlsSession:
    """The server's side of one connection.

    Attributes:
        established: the handshake is done.
        ended: the peer has sent close_notify; nothing comes any more.
        error: why nothing is taken any more; None while all is well.
        hello: bytes of an incomplete ClientHello; None once OpenSSL has it.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.hello: bytearray | None = bytearray()
        self.reader = HelloReader()
        self.established = self.ended = False
        self.error: str | None = None

    @property
    def protocol(self) -> str | None:
        """What was agreed on by ALPN; None for nothing."""
        return self.ssl.selected_alpn_protocol()

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the peer; return the plaintext in them."""
        if self.error is not None or self.ended:
            return b""
        if self.hello is not None:
            self.hello += data
            if not self.greeted():
                return b""
            data, self.hello = bytes(self.hello), None
        self.incoming.write(data)
        if not self.established:
            self.established = self.attempt(self.ssl.do_handshake)
            if not self.established:
                return b""
        found: list[bytes] = []
        self.attempt(lambda: self.read(found))
        return b"".join(found)

    def greeted(self) -> bool:
        """Check the ClientHello; return whether OpenSSL is to go on with it."""
        assert self.hello is not None
        offered = self.reader.offered(self.hello)
        if offered is None:
            if len(self.hello) > HELLO_BYTES_MAX:
                self.fail(f"a ClientHello of more than {HELLO_BYTES_MAX} bytes")
            return False
        if offered and PROTOCOL.encode() not in offered:
            self.outgoing.write(NO_APPLICATION_PROTOCOL)
            self.fail(f"it offers {b', '.join(offered)!r} by ALPN; gRPC needs h2")
            return False
        return True

    def read(self, found: list[bytes]) -> None:
        """Decrypt all that has come."""
        while piece := self.ssl.read(RECORD_BYTES_MAX):
            found.append(piece)
        self.ended = True

    def attempt(self, step: Callable[[], None]) -> bool:
        """Run a step of OpenSSL; return whether it was completed."""
        try:
            step()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self.fail(reason(error))
            return False
        return True

    def fail(self, text: str) -> None:
        """Take nothing any more; an alert that is due waits to be taken."""
        self.error = text
        self.hello = None

    def send(self, data: bytes) -> None:
        """Encrypt data for the peer."""
        if self.error is None and self.established:
            self.attempt(lambda: self.write(data))

    def write(self, data: bytes) -> None:
        """Encrypt all of it: memory is never full."""
        sent = self.ssl.write(data)
        assert sent == len(data)

    def take(self) -> bytes:
        """Return the bytes that are to be written, and forget them."""
        return self.outgoing.read()

    def close(self) -> None:
        """Send close_notify; the peer's own is not waited for."""
        if self.error is None and self.established:
            self.attempt(self.unwrap)
            self.ended = True

    def unwrap(self) -> None:
        """Shut OpenSSL's session down."""
        self.ssl.unwrap()


class HelloReader:
    """Reads a ClientHello as it comes, every byte once, in however many pieces and records.

    Attributes:
        at: where the first record begins that was not whole.
        found: of the message, from the records before.
    """

    __slots__ = ("at", "found")

    def __init__(self) -> None:
        self.at, self.found = 0, bytearray()

    def offered(self, data: bytes | bytearray) -> list[bytes] | None:
        """Return the protocols that are offered by ALPN; None while the message is incomplete.

        Bytes that are no ClientHello count as one that offers nothing.

        Args:
            data: all that has come so far.
        """
        try:
            hello = self.body(data)
            return None if hello is None else alpn(hello)
        except (IndexError, ValueError):
            return []

    def body(self, data: bytes | bytearray) -> bytes | None:
        """Return the body of the message; None while it is incomplete.

        Raises:
            ValueError: it is another one.
        """
        found = self.found
        while True:
            if len(found) >= HELLO_HEAD_BYTES:
                end = HELLO_HEAD_BYTES + int.from_bytes(found[1:4], "big")
                if found[0] != CLIENT_HELLO:
                    raise ValueError("another message")
                if len(found) >= end:
                    return bytes(found[HELLO_HEAD_BYTES:end])
            at = self.at
            if len(data) - at < RECORD_HEAD_BYTES:
                return None
            size = int.from_bytes(data[at + 3 : at + 5], "big")
            if data[at] != HANDSHAKE_RECORD or not 0 < size <= RECORD_BYTES_MAX:
                raise ValueError("another record")
            at += RECORD_HEAD_BYTES
            if len(data) - at < size:
                return None
            found += data[at : at + size]
            self.at = at + size


def alpn(hello: bytes) -> list[bytes]:
    """Return the protocols of a ClientHello's body (RFC 8446, section 4.1.2)."""
    rest = hello[2 + 32 :]  # version and random
    for size_bytes in (1, 2, 1):  # session id, cipher suites, compression
        _, rest = vector(rest, size_bytes)
    extensions, _ = vector(rest, 2)
    while extensions:
        kind = int.from_bytes(extensions[:2], "big")
        content, extensions = vector(extensions[2:], 2)
        if kind == ALPN:
            names, _ = vector(content, 2)
            found = []
            while names:
                name, names = vector(names, 1)
                found.append(name)
            return found
    return []


def vector(data: bytes, size_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes behind their length, and the rest.

    Raises:
        ValueError: they are cut off.
    """
    size = int.from_bytes(data[:size_bytes], "big")
    end = size_bytes + size
    if len(data) < max(end, size_bytes):
        raise ValueError("cut off")
    return data[size_bytes:end], data[end:]
