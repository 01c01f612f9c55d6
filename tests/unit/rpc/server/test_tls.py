"""TLS as bytes in, bytes out: against OpenSSL's own client side, cut anywhere."""

import re
import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.rpc.server.tls import HELLO_BYTES_MAX, HelloReader, TlsSession, new_context


class Client:
    """The other side: OpenSSL over memory."""

    def __init__(self, *protocols: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        if protocols:
            context.set_alpn_protocols(list(protocols))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.incoming, self.outgoing)

    def hello(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.ssl.do_handshake()
        return self.outgoing.read()

    def shake(self, session: TlsSession, piece: int = 1 << 20) -> None:
        for _ in range(4):
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                pass
            feed(session, self.outgoing.read(), piece)
            self.incoming.write(session.take())

    def read(self) -> bytes:
        found = b""
        try:
            while piece := self.ssl.read(1 << 16):
                found += piece
        except ssl.SSLWantReadError:
            pass
        return found


def feed(session: TlsSession, data: bytes, piece: int = 1 << 20) -> bytes:
    return b"".join(session.receive(data[at : at + piece]) for at in range(0, len(data), piece))


@pytest.fixture(scope="module")
def context(certificate: Path) -> ssl.SSLContext:
    return new_context(certificate, certificate)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_bytes_go_both_ways_however_they_are_cut(
    context: ssl.SSLContext, version: ssl.TLSVersion, piece: int
) -> None:
    session, client = TlsSession(context), Client("h2", version=version)
    client.shake(session, piece)
    assert session.established and client.ssl.selected_alpn_protocol() == "h2"
    client.ssl.write(b"ping" * 10_000)
    assert feed(session, client.outgoing.read(), piece) == b"ping" * 10_000
    session.send(b"pong" * 100_000)
    client.incoming.write(session.take())
    assert client.read() == b"pong" * 100_000
    session.close()
    client.incoming.write(session.take())
    assert client.ssl.read(1) == b""  # close_notify
    assert session.error is None


def test_the_peer_s_last_word_ends_the_session(context: ssl.SSLContext) -> None:
    session, client = TlsSession(context), Client("h2")
    client.shake(session)
    client.ssl.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.ssl.unwrap()
    assert session.receive(client.outgoing.read()) == b"last"
    assert session.ended and session.error is None
    assert session.receive(b"more") == b""


def test_who_offers_no_protocol_is_let_in(context: ssl.SSLContext) -> None:
    session, client = TlsSession(context), Client()
    client.shake(session)
    assert session.established


def test_who_offers_other_protocols_alone_is_told(context: ssl.SSLContext) -> None:
    session, client = TlsSession(context), Client("http/1.1", "spdy/3")
    session.receive(client.hello())
    assert session.error == "it offers b'http/1.1, spdy/3' by ALPN; gRPC needs h2"
    client.incoming.write(session.take())
    with pytest.raises(ssl.SSLError, match="no application protocol"):
        client.ssl.do_handshake()
    assert session.receive(b"more") == session.take() == b""


def test_old_versions_are_refused_with_an_alert(context: ssl.SSLContext) -> None:
    session, client = TlsSession(context), Client("h2")
    hello = bytearray(client.hello())
    hello[9:11] = b"\x03\x01"  # the version, and no extension that says another
    versions = re.search(rb"\x00\x2b\x00[\x03-\x09][\x02-\x08]\x03\x04", hello)
    assert versions is not None
    hello[versions.start() + 1] = 0xFF
    session.receive(bytes(hello))
    assert session.error == "unsupported protocol"
    assert session.take()[0] == 21


def test_a_client_hello_has_a_bound(context: ssl.SSLContext) -> None:
    session = TlsSession(context)
    endless = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes((1 << 14) - 4)
    session.receive(endless)
    assert session.error is None
    for _ in range(HELLO_BYTES_MAX >> 14):
        session.receive(b"\x16\x03\x01\x40\x00" + bytes(1 << 14))
    assert session.error == f"a ClientHello of more than {HELLO_BYTES_MAX} bytes"
    assert session.hello is None


def test_each_byte_of_a_client_hello_is_read_once_however_it_is_cut() -> None:
    hello, reader, came = Client("h2").hello()[5:], HelloReader(), bytearray()
    for byte in hello[:-1]:
        for piece in (b"\x16\x03\x01\x00\x01", bytes((byte,))):
            came += piece
            assert reader.offered(came) is None
        assert (reader.at, len(reader.found)) == (len(came), len(came) // 6)
    assert reader.offered(came + b"\x16\x03\x01\x00\x01" + hello[-1:]) == [b"h2"]


def test_a_client_hello_in_several_records_is_read() -> None:
    hello = Client("h2", "http/1.1").hello()
    body = hello[5:]
    cut = [body[at : at + 100] for at in range(0, len(body), 100)]
    records = b"".join(b"\x16\x03\x01" + len(each).to_bytes(2, "big") + each for each in cut)
    assert HelloReader().offered(hello) == HelloReader().offered(records) == [b"h2", b"http/1.1"]
    assert HelloReader().offered(records[:-1]) is None
    assert HelloReader().offered(Client().hello()) == []


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_bytes_leave_typed_errors_only(context: ssl.SSLContext, data: st.DataObject) -> None:
    session, client = TlsSession(context), Client("h2")
    if data.draw(st.booleans()):
        client.shake(session)
        client.ssl.write(b"x" * 100)
        greeting = bytearray(client.outgoing.read())
    else:
        greeting = bytearray(client.hello())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(greeting) - 1), st.integers(0, 255)), max_size=4)
    ):
        greeting[at] = byte
    session.receive(bytes(greeting))
    session.receive(data.draw(st.binary(max_size=100)))
    session.send(b"y")
    session.close()
    session.take()
