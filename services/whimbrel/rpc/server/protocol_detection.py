"""Who comes to the port: the first byte tells whether it is TLS, plaintext, or somebody who is wrong here.

    ProtocolDetector ──(0x16)──► Secured ──(handshake done)──► a connection above it, over a `SecureTransport`
       ├──(P, of PRI * HTTP/2.0)──► the connection takes the transport over
       └──(anything else)──► closed, with a line in the log

Nothing is sent before the first byte, and a plaintext connection is as if it had been there from the start:
it has the transport for itself, and pays for this one call once.

**Bounds.** Whoever has not got as far as HTTP/2's own greeting within `HANDSHAKE_S` of the moment it came is
cut off: with nothing said, with half a ClientHello, with half a handshake (`NativeConnection.look` sees to
those who are further). Lines of the log: one warning a host in `WARN_S`, the rest are for debugging.
"""

import asyncio
import datetime
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from whimbrel.rpc.server.certificates import CertificateError, TlsSettings, configured, self_signed
from whimbrel.rpc.server.tls import HANDSHAKE_RECORD, TlsSession

if TYPE_CHECKING:
    from whimbrel.rpc.server.native import NativeConnection, NativeServer

__all__ = ["HANDSHAKE_S", "Contexts", "ProtocolDetector", "Strangers", "host_and_port"]

HANDSHAKE_S = 20.0
PLAIN = b"P"[0]
SHOWN_BYTES = 24  # of what a stranger said, in the log
WARN_S = 600.0
HOSTS_KEPT = 256
AGAIN_S = 60.0  # between two attempts to make a certificate

# What it may be, for who reads the log.
SPOKEN = (
    (b"\x80", "SSL 2"),
    (b"\x15\x03", "an alert of TLS"),
    (b"GET ", "HTTP/1: this port speaks gRPC, over HTTP/2"),
    (b"HEAD ", "HTTP/1: this port speaks gRPC, over HTTP/2"),
    (
        b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51",
        "a PROXY header, which nobody here reads: switch it off at the proxy",
    ),
    (b"\x00\x00", "RocketMQ's remoting protocol, perhaps: clients of 5.x speak gRPC"),
)

log = logging.getLogger(__name__)


class Strangers:
    """Tells the log of those who are wrong here, each host once in a while."""

    def __init__(self) -> None:
        self.warned: dict[str, float] = {}  # by host, the oldest first

    def tell(self, peer: str, what: str, now: float) -> None:
        """Write a line: a warning, or for debugging when this host was warned of lately."""
        host = peer.rpartition(":")[0]
        lately = self.warned.get(host)
        if lately is not None and now - lately < WARN_S:
            log.debug("%s: %s", peer, what)
            return
        self.warned.pop(host, None)
        if len(self.warned) >= HOSTS_KEPT:
            del self.warned[next(iter(self.warned))]
        self.warned[host] = now
        log.warning("%s: %s; further lines of this host are for debugging", peer, what)


def described(data: bytes) -> str:
    """Return what somebody said who is wrong here."""
    guess = next((f" ({text})" for begin, text in SPOKEN if data.startswith(begin)), "")
    return f"neither TLS nor HTTP/2, closed: it began with {data[:SHOWN_BYTES]!r}{guess}"


class Contexts:
    """A server's certificate, as the sessions need it: at once when it is configured, else made when wanted.

    Attributes:
        context: None before the first peer came with TLS.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: TlsSettings, host: str) -> None:
        self.loop, self.settings, self.host = loop, settings, host
        self.context = configured(settings)
        self.waiting: list[Callable[[], None]] = []
        self.failed_at = -AGAIN_S

    def want(self, ready: Callable[[], None]) -> None:
        """Make it in a thread; `ready` is called when it is there, or can't be."""
        if self.loop.time() - self.failed_at < AGAIN_S:
            ready()
            return
        self.waiting.append(ready)
        if len(self.waiting) == 1:
            making = self.loop.run_in_executor(
                None, self_signed, self.settings, self.host, lambda: datetime.datetime.now(datetime.UTC)
            )
            making.add_done_callback(self.made)

    def made(self, making: "asyncio.Future[ssl.SSLContext]") -> None:
        """Let those go on who wait."""
        try:
            self.context = making.result()
        except (CertificateError, asyncio.CancelledError) as error:
            self.failed_at = self.loop.time()
            log.error("TLS can't be served: %s", error)
        waiting, self.waiting = self.waiting, []
        for ready in waiting:
            ready()


class ProtocolDetector(asyncio.Protocol):
    """Somebody who has said nothing yet."""

    def __init__(self, server: "NativeServer") -> None:
        self.server = server
        self.made_at = server.loop.time()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self.server.arrivals.add(self)

    def data_received(self, data: bytes) -> None:
        """Hand over to who understands it."""
        self.server.arrivals.discard(self)
        if data[0] == PLAIN:
            connection = self.server.connection(self.made_at)
            self.transport.set_protocol(connection)
            connection.connection_made(self.transport)
            connection.data_received(data)
        elif data[0] == HANDSHAKE_RECORD:
            secured = Secured(self.server, self.made_at)
            self.transport.set_protocol(secured)
            secured.begin(self.transport, data)
        else:
            peer = host_and_port(self.transport.get_extra_info("peername"))
            self.server.strangers.tell(peer, described(data), self.server.loop.time())
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget it."""
        self.server.arrivals.discard(self)

    def look(self, now: float) -> None:
        """Cut off who says nothing."""
        if now - self.made_at > HANDSHAKE_S:
            self.transport.abort()


class Secured(asyncio.Protocol):
    """A connection under TLS: decrypts for the one above it, which begins when hands are shaken."""

    def __init__(self, server: "NativeServer", made_at: float) -> None:
        self.server, self.made_at = server, made_at
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.session: TlsSession | None = None
        self.above: NativeConnection | None = None
        self.early = b""

    def begin(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take a transport over, and the first bytes that came."""
        self.transport = transport
        self.server.arrivals.add(self)
        contexts = self.server.contexts
        if contexts.context is not None:
            self.open(data)
            return
        self.early = data
        transport.pause_reading()
        contexts.want(self.ready)

    def ready(self) -> None:
        """Go on with a certificate, or go."""
        if self.transport.is_closing():
            return
        if self.server.contexts.context is None:
            self.transport.abort()
            return
        self.transport.resume_reading()
        self.open(self.early)

    def open(self, data: bytes) -> None:
        """Shake hands."""
        context = self.server.contexts.context
        assert context is not None
        self.session, self.early = TlsSession(context), b""
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Decrypt, and hand over."""
        session = self.session
        assert session is not None  # reading is paused before
        plain = session.receive(data)
        if self.above is None and session.established:
            self.server.arrivals.discard(self)
            self.above = self.server.connection(self.made_at)
            self.above.connection_made(SecureTransport(self.transport, session))
        if out := session.take():
            self.transport.write(out)
        if plain and self.above is not None:
            self.above.data_received(plain)
        if session.error is not None:
            peer = host_and_port(self.transport.get_extra_info("peername"))
            self.server.strangers.tell(peer, f"TLS fails: {session.error}", self.server.loop.time())
            self.transport.close()
        elif session.ended:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the connection above."""
        self.server.arrivals.discard(self)
        if self.above is not None:
            self.above.connection_lost(error)

    def pause_writing(self) -> None:
        """Tell the connection above; before it is there, what waits is a handshake's few bytes."""
        if self.above is not None:
            self.above.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection above."""
        if self.above is not None:
            self.above.resume_writing()

    def look(self, now: float) -> None:
        """Cut off who does not finish the handshake."""
        if now - self.made_at > HANDSHAKE_S:
            self.transport.abort()


class SecureTransport(asyncio.Transport):
    """What a connection under TLS writes to: encrypts, and leaves the rest to the real transport."""

    def __init__(self, real: asyncio.Transport, session: TlsSession) -> None:
        self.real, self.session = real, session

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write."""
        self.session.send(bytes(data))
        if out := self.session.take():
            self.real.write(out)

    def close(self) -> None:
        """Say the last word, and close when all is written."""
        if not self.real.is_closing():
            self.session.close()
            if out := self.session.take():
                self.real.write(out)
            self.real.close()

    def abort(self) -> None:
        """Close at once."""
        self.real.abort()

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""
        return self.real.is_closing()

    def pause_reading(self) -> None:
        """Read no more."""
        self.real.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self.real.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when `pause_writing` is called."""
        self.real.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait."""
        return self.real.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the socket."""
        return self.real.get_extra_info(name, default)


def host_and_port(address: Any) -> str:
    """Return a socket's address as text."""
    if not isinstance(address, tuple):
        return str(address or "")
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
