"""Finds out by its first byte what a new connection speaks: TLS, HTTP/2, the remoting protocol, or else.

    ProtocolDetector ──(0x16)──► TlsProtocol ──(handshake done)──► one of those below, over a `TlsTransport`
       ├──(P, of PRI * HTTP/2.0)──► NativeConnection takes the transport over
       ├──(0x00, of a frame's length)──► RemotingConnection, where the server serves that
       └──(anything else)──► closed, with a line in the log

Under TLS a peer that has chosen h2 by ALPN speaks HTTP/2. RocketMQ's clients know no ALPN: of a peer that
offers nothing the first byte that it encrypts decides.

Nothing is sent before the first byte. A plaintext
connection then owns its transport, so that detection costs it one call. A connection that is not let in
(`admission.py`) is told so by GOAWAY when its first byte is one of plaintext, and is closed without a word
under TLS.

**Bounds.** A peer must have sent HTTP/2's preface and settings within `HANDSHAKE_S` of being accepted, else
it is cut off: here while nothing, half a ClientHello or half a handshake has come, in
`NativeConnection.check_timeouts` after that. Log lines: one warning a host in `WARN_S`, the rest at DEBUG.
"""

import asyncio
import datetime
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.errors import Code, ProtocolError
from whimbrel.rpc.server.admission import Admission, Place
from whimbrel.rpc.server.certificates import CertificateError, TlsSettings, configured, self_signed
from whimbrel.rpc.server.tls import HANDSHAKE_RECORD, PROTOCOL, TlsSession

__all__ = [
    "HANDSHAKE_S",
    "HTTP2_FIRST_BYTE",
    "ContextProvider",
    "Entrance",
    "ProtocolDetector",
    "RejectionLog",
    "TlsProtocol",
    "host_and_port",
]

HANDSHAKE_S = 20.0
HTTP2_FIRST_BYTE = b"P"[0]
# A ClientHello comes in a few pieces. What comes in more is read in larger ones.
HELLO_PIECES_AT_ONCE, HELLO_PAUSE_S = 8, 0.02
SHOWN_BYTES = 24  # of the first bytes, in the log
WARN_S = 600.0
HOSTS_KEPT = 256
AGAIN_S = 60.0  # between two attempts to make a certificate

# First bytes of protocols that end up here, with a text for the log.
PROTOCOL_HINTS = (
    (b"\x80", "SSL 2"),
    (b"\x15\x03", "an alert of TLS"),
    (b"GET ", "HTTP/1: this port speaks gRPC, over HTTP/2"),
    (b"HEAD ", "HTTP/1: this port speaks gRPC, over HTTP/2"),
    (
        b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51",
        "a PROXY header, which nobody here reads: switch it off at the proxy",
    ),
    (b"\x00", "RocketMQ's remoting protocol, perhaps, which is not spoken here: see docs/remoting.md"),
)

logger = logging.getLogger(__name__)


class RejectionLog:
    """Logs connections that were rejected, with at most one warning a host in `WARN_S`."""

    def __init__(self) -> None:
        self.warned: dict[str, float] = {}  # by host, the oldest first

    def report(self, peer: str, what: str, now: float, host: str | None = None) -> None:
        """Log a rejection: as a warning, or at DEBUG when this host was warned about lately."""
        host = peer.rpartition(":")[0] if host is None else host
        lately = self.warned.get(host)
        if lately is not None and now - lately < WARN_S:
            logger.debug("%s: %s", peer, what)
            return
        self.warned.pop(host, None)
        if len(self.warned) >= HOSTS_KEPT:
            del self.warned[next(iter(self.warned))]
        self.warned[host] = now
        logger.warning("%s: %s; further lines of this host are for debugging", peer, what)


def describe_bytes(data: bytes) -> str:
    """Return a text on the first bytes of a rejected connection."""
    guess = next((f" ({text})" for begin, text in PROTOCOL_HINTS if data.startswith(begin)), "")
    return (
        f"neither TLS nor a protocol that is spoken here, closed: it began with {data[:SHOWN_BYTES]!r}{guess}"
    )


class ContextProvider:
    """The TLS context of a server: there at once when a certificate is configured, else made on demand.

    Attributes:
        context: None before the first TLS peer came, when none is configured.
        waiting: callbacks of the connections that wait for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: TlsSettings, host: str) -> None:
        self.loop, self.settings, self.host = loop, settings, host
        self.context = configured(settings)
        self.waiting: list[Callable[[], None]] = []
        self.failed_at = -AGAIN_S

    def request(self, ready: Callable[[], None]) -> None:
        """Make the context in a thread; `ready` is called when it is there, or can't be made."""
        if self.loop.time() - self.failed_at < AGAIN_S:
            ready()
            return
        self.waiting.append(ready)
        if len(self.waiting) == 1:
            making = self.loop.run_in_executor(
                None, self_signed, self.settings, self.host, lambda: datetime.datetime.now(datetime.UTC)
            )
            making.add_done_callback(self.completed)

    def completed(self, making: "asyncio.Future[ssl.SSLContext]") -> None:
        """Resume the connections that wait."""
        try:
            self.context = making.result()
        except (CertificateError, asyncio.CancelledError) as error:
            self.failed_at = self.loop.time()
            logger.error("TLS can't be served: %s", error)
        waiting, self.waiting = self.waiting, []
        for ready in waiting:
            ready()


class Entrance(Protocol):
    """What a server has for those of whom it is not known yet what they speak.

    Attributes:
        admission: which of them are let in. refusals: logs those that are not.
        handshaking: those that are here.
        rejections: logs those that speak no protocol of ours.
    """

    loop: asyncio.AbstractEventLoop
    admission: Admission
    handshaking: "set[ProtocolDetector | TlsProtocol]"
    context_provider: ContextProvider
    rejections: RejectionLog
    refusals: RejectionLog

    def new_connection(self, connected_at: float, place: Place) -> asyncio.Protocol:
        """Return an HTTP/2 connection for a peer that was accepted at that moment."""

    def plain_connection(self, connected_at: float, place: Place, data: bytes) -> asyncio.Protocol | None:
        """Return the connection for a peer that begins with these bytes; None: they are of no protocol."""


class ProtocolDetector(asyncio.Protocol):
    """A connection whose first byte has not come yet."""

    def __init__(self, server: Entrance) -> None:
        self.server = server
        self.connected_at = server.loop.time()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.place: Place = None  # type: ignore[assignment]  # set by `connection_made`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte; a connection that is not let in is told why then."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        address = transport.get_extra_info("peername")
        place = self.place = self.server.admission.enter(address[0] if isinstance(address, tuple) else "")
        if place.refused:
            once = None if place.reason == "host" else ""  # a full process says so once, whoever comes
            self.server.refusals.report(host_and_port(address), place.refused, self.connected_at, once)
            if not place.told:
                self.transport.abort()
                return
        self.server.handshaking.add(self)

    def refuse(self, data: bytes) -> None:
        """Tell a peer that it is not let in."""
        if data[0] == HTTP2_FIRST_BYTE:
            conn = Connection(server=True)
            conn.fail(ProtocolError(Code.ENHANCE_YOUR_CALM, self.place.refused))
            self.transport.write(conn.take())
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Hand the connection over to the protocol that it speaks."""
        self.server.handshaking.discard(self)
        if self.place.refused:
            self.refuse(data)
        elif (connection := self.server.plain_connection(self.connected_at, self.place, data)) is not None:
            self.transport.set_protocol(connection)
            connection.connection_made(self.transport)
            connection.data_received(data)
        elif data[0] == HANDSHAKE_RECORD:
            secured = TlsProtocol(self.server, self.connected_at, self.place)
            self.transport.set_protocol(secured)
            secured.begin(self.transport, data)
        else:
            peer = host_and_port(self.transport.get_extra_info("peername"))
            self.server.rejections.report(peer, describe_bytes(data), self.server.loop.time())
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget it."""
        self.server.handshaking.discard(self)
        self.place.leave()

    def check_timeouts(self, now: float) -> None:
        """Cut off a peer that sends nothing."""
        if self.place.refused or now - self.connected_at > HANDSHAKE_S:
            self.transport.abort()


class TlsProtocol(asyncio.Protocol):
    """A connection under TLS: decrypts for the connection that takes what it says.

    Attributes:
        session: None while the server's context is being made.
        connection: None before it is known what the peer speaks.
        pending: received before there was a session.
        pieces: in which the ClientHello has come so far.
    """

    def __init__(self, server: Entrance, connected_at: float, place: Place) -> None:
        self.server, self.connected_at, self.place = server, connected_at, place
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.session: TlsSession | None = None
        self.connection: asyncio.Protocol | None = None
        self.pending = b""
        self.pieces = 0

    def begin(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take a transport over, and the first bytes that came."""
        self.transport = transport
        self.server.handshaking.add(self)
        context_provider = self.server.context_provider
        if context_provider.context is not None:
            self.open(data)
            return
        self.pending = data
        transport.pause_reading()
        context_provider.request(self.certificate_ready)

    def certificate_ready(self) -> None:
        """Go on with a certificate; without one, close."""
        if self.transport.is_closing():
            return
        if self.server.context_provider.context is None:
            self.transport.abort()
            return
        self.transport.resume_reading()
        self.open(self.pending)

    def open(self, data: bytes) -> None:
        """Start the handshake."""
        context = self.server.context_provider.context
        assert context is not None
        self.session, self.pending = TlsSession(context), b""
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Decrypt, and pass on."""
        session = self.session
        assert session is not None  # reading is paused until there is one
        plain = session.receive(data)
        if session.hello is not None:
            self.wait_for_more()
        if self.connection is None and session.established:
            self.begin_connection(session, plain)
        if out := session.take():
            self.transport.write(out)
        if plain and self.connection is not None:
            self.connection.data_received(plain)
        if session.error is not None:
            peer = host_and_port(self.transport.get_extra_info("peername"))
            self.server.rejections.report(peer, f"TLS fails: {session.error}", self.server.loop.time())
            self.transport.close()
        elif session.ended:
            self.transport.close()

    def begin_connection(self, session: TlsSession, plain: bytes) -> None:
        """Make the connection for what the peer speaks, as soon as that is known."""
        if session.protocol == PROTOCOL:
            self.connection = self.server.new_connection(self.connected_at, self.place)
        elif plain:
            self.connection = self.server.plain_connection(self.connected_at, self.place, plain)
            if self.connection is None:
                peer = host_and_port(self.transport.get_extra_info("peername"))
                self.server.rejections.report(peer, describe_bytes(plain), self.server.loop.time())
                self.server.handshaking.discard(self)
                self.transport.abort()
        if self.connection is not None:
            self.server.handshaking.discard(self)
            self.connection.connection_made(TlsTransport(self.transport, session))

    def wait_for_more(self) -> None:
        """Read the rest of a ClientHello a little later when it comes in many pieces."""
        self.pieces += 1
        if self.pieces > HELLO_PIECES_AT_ONCE and not self.transport.is_closing():
            self.transport.pause_reading()
            self.server.loop.call_later(HELLO_PAUSE_S, self.read_on)

    def read_on(self) -> None:
        """Read again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Pass on to the HTTP/2 connection."""
        self.server.handshaking.discard(self)
        self.place.leave()
        if self.connection is not None:
            self.connection.connection_lost(error)

    def pause_writing(self) -> None:
        """Pass on; before there is an HTTP/2 connection, only a handshake's few bytes can wait."""
        if self.connection is not None:
            self.connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass on to the HTTP/2 connection."""
        if self.connection is not None:
            self.connection.resume_writing()

    def check_timeouts(self, now: float) -> None:
        """Cut off a peer that does not finish the handshake, or says nothing after it."""
        if now - self.connected_at > HANDSHAKE_S:
            self.transport.abort()


class TlsTransport(asyncio.Transport):
    """The transport of a connection under TLS: encrypts, and leaves the rest to the real transport."""

    def __init__(self, real: asyncio.Transport, session: TlsSession) -> None:
        self.real, self.session = real, session

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write."""
        self.session.send(bytes(data))
        if out := self.session.take():
            self.real.write(out)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt and write."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send close_notify, and close when all is written."""
        if not self.real.is_closing():
            self.session.close()
            if out := self.session.take():
                self.real.write(out)
            self.real.close()

    def abort(self) -> None:
        """Close at once."""
        self.real.abort()

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self.real.is_closing()

    def pause_reading(self) -> None:
        """Stop reading."""
        self.real.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self.real.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set from how many waiting bytes on `pause_writing` is called."""
        self.real.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that wait."""
        return self.real.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information on the socket."""
        return self.real.get_extra_info(name, default)


def host_and_port(address: Any) -> str:
    """Return a socket's address as text."""
    if not isinstance(address, tuple):
        return str(address or "")
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
