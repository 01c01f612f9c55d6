"""One port for plaintext and TLS: what the first byte decides, over real loopback connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

from support.http2.frames import HELLO
from support.http2.in_memory import RawPeer
from whimbrel.model.limits import RPC_MESSAGE_BYTES_MAX
from whimbrel.rpc.server.certificates import FILE_NAME, CertificateError, TlsSettings
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.handlers import Service, UnaryMethod
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.protocol_detection import AGAIN_S, HOSTS_KEPT, WARN_S, RejectionLog
from whimbrel.rpc.server.serving import serve

MIB = 1 << 20
OPTIONS = (("grpc.max_receive_message_length", RPC_MESSAGE_BYTES_MAX),)


def configured(certificate: Path) -> TlsSettings:
    return TlsSettings(certificate=str(certificate), key=str(certificate))


class Text:
    """A message that is its bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @staticmethod
    def FromString(data: bytes) -> "Text":
        return Text(data)

    def SerializeToString(self) -> bytes:
        return self.data


@asynccontextmanager
async def serving(tls: TlsSettings) -> AsyncIterator[NativeServer]:
    echo = UnaryMethod("Echo", Text, lambda call, request: request)
    server = await serve([Service("t.T", (echo,))], host="127.0.0.1", port=0, tls=tls)
    try:
        yield server
    finally:
        await server.stop(grace=0)


@asynccontextmanager
async def calling(server: NativeServer, roots: Path | None) -> AsyncIterator[Any]:
    """Give the echo of a grpcio client that verifies the certificate; without one it comes in plaintext."""
    if roots is None:
        channel = grpc.aio.insecure_channel(server.address, options=OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(await asyncio.to_thread(roots.read_bytes))
        channel = grpc.aio.secure_channel(server.address, credentials, options=OPTIONS)
    async with channel:
        yield channel.unary_unary("/t.T/Echo")


async def both_ways_on_one_port(certificate: Path) -> None:
    async with (
        serving(configured(certificate)) as server,
        calling(server, certificate) as secured,
        calling(server, None) as plain,
    ):
        for size in (0, 1, 100, 16_384, 4 * MIB):
            for echo in (plain, secured):
                assert await echo(bytes(size), timeout=20) == bytes(size)
        many = await asyncio.gather(*(secured(b"%d" % n, timeout=20) for n in range(100)))
        assert many == [b"%d" % n for n in range(100)]
        assert len(server.connections) == 2 and not server.handshaking
        assert all(peer.peer.startswith("127.0.0.1:") for peer in server.connections)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_plaintext_and_tls_are_served_on_one_port(run: Any, certificate: Path) -> None:
    run(both_ways_on_one_port(certificate))


async def test_self_signed_one_is_made_when_the_first_peer_needs_it(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with serving(TlsSettings(directory=tmp_path)) as server:
        async with calling(server, None) as plain:
            await plain(b"", timeout=20)
        assert not (tmp_path / FILE_NAME).exists() and server.context_provider.context is None

        async def shown() -> bytes:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return certificate

        assert len(set(await asyncio.gather(*(shown() for _ in range(5))))) == 1
        async with calling(server, tmp_path / FILE_NAME) as secured:
            assert await secured(b"x", timeout=20) == b"x"


async def test_what_is_neither_is_closed_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(TlsSettings()) as server:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x01\x02{}"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(said)
            assert await reader.read() == b""
            writer.close()
    (line,) = caplog.messages
    assert line.startswith("127.0.0.1:") and "it began with b'GET / HTTP/1.1" in line and "HTTP/2" in line


def test_strangers_are_told_of_once_a_host_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    rejections = RejectionLog()
    for host, now in (("a", 0.0), ("a", WARN_S - 1), ("b", WARN_S - 1), ("a", WARN_S)):
        rejections.report(f"{host}:1", "x", now)
    assert [record.getMessage()[0] for record in caplog.records] == ["a", "b", "a"]
    for number in range(2 * HOSTS_KEPT):
        rejections.report(f"{number}:1", "x", WARN_S)
    assert len(rejections.warned) == HOSTS_KEPT


async def test_tls_that_fails_is_told_of_with_its_reason(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    verifying = ssl.create_default_context()
    verifying.set_alpn_protocols(["http/1.1"])
    async with serving(configured(certificate)) as server:
        with pytest.raises(ssl.SSLError, match="no application protocol"):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=verifying)
        peer = RawPeer(server)
        peer.send(b"\x16\x03\x01\x00\x04junk")
        assert peer.closing and peer.sent[:1] == b"\x15"  # an alert
    offered, junk = caplog.messages  # of two hosts
    assert "TLS fails: it offers b'http/1.1' by ALPN" in offered and "TLS fails: " in junk


async def test_without_a_certificate_plaintext_is_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[str] = []

    def fail(settings: TlsSettings, host: str, now: Any) -> ssl.SSLContext:
        attempts.append(host)
        raise CertificateError("no self-signed certificate can be made: name one")

    monkeypatch.setattr("whimbrel.rpc.server.protocol_detection.self_signed", fail)
    async with serving(TlsSettings()) as server:
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\x16\x03\x01")
            assert await reader.read() == b""
            writer.close()
        assert attempts == ["127.0.0.1"]  # the second one came within AGAIN_S
        server.context_provider.failed_at -= AGAIN_S
        async with calling(server, None) as plain:
            assert await plain(b"x", timeout=20) == b"x"
    assert caplog.messages == ["TLS can't be served: no self-signed certificate can be made: name one"]


async def test_certificate_that_can_t_be_used_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="must be able to read both files"):
        async with serving(configured(tmp_path / "missing.pem")):
            pass


async def test_stop_says_the_last_word_under_tls_and_cuts_off_who_said_nothing(certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    context.set_alpn_protocols(["h2"])
    async with serving(configured(certificate)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        writer.write(HELLO)
        silent = RawPeer(server)
        await reader.readexactly(9)
        await server.stop(grace=0)
        assert silent.aborted
        assert b"\x07\x00\x00\x00\x00\x00" in await reader.read()  # GOAWAY
        writer.close()


async def test_slow_reader_under_tls_is_paused_and_hears_the_last_word(certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with serving(configured(certificate)) as server:
        peer = RawPeer(server)
        for _ in range(3):
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                peer.send(outgoing.read())
                incoming.write(peer.take())
        client.write(HELLO)
        peer.send(outgoing.read())
        (above,) = server.connections
        assert isinstance(above, NativeConnection) and above.conn.settled
        peer.stuck = True
        above.transport.write(bytes(MIB))
        assert above.paused and peer.paused
        peer.loosen()
        assert not above.paused and not peer.paused
        above.transport.close()
        assert peer.closing
        incoming.write(peer.sent)
        read = 0
        while piece := client.read(MIB):  # until close_notify: without it this raises SSLWantReadError
            read += len(piece)
        assert read > MIB
        peer.leave()
        assert not server.connections
