"""Connections of the remoting protocol over real sockets. Numbers are those of the gateway's checklist."""

import asyncio
import functools
import random
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import HOSTILE_FRAMES, frame
from support.waiting import eventually
from whimbrel.deferred import Deferred
from whimbrel.errors import ConnectionClosed, RequestTimeout, Throttled, TopicNotFound
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.frames import FrameReader
from whimbrel.rpc.remoting.handlers import Outcome, Peer, Reply
from whimbrel.rpc.server import protocol_detection, remoting
from whimbrel.rpc.server.certificates import TlsSettings
from whimbrel.rpc.server.handlers import RemotingService
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.remoting import ASKED_MAX, RemotingConnection
from whimbrel.rpc.server.serving import serve
from whimbrel.rpc.server.shared import WRITE_BYTES_HIGH

ECHO, FAIL, CRASH, LATER, SILENT, LARGE = 1, 2, 3, 4, 5, 6


class Service:
    """Handlers that do one thing each, and keep what they saw."""

    def __init__(self) -> None:
        self.later: list[Deferred[Reply]] = []
        self.peers: list[Peer] = []
        self.closed: list[Peer] = []
        self.ended: list[tuple[int, int, bool]] = []
        handles: Any = {
            ECHO: lambda peer, request: Reply(0, dict(request.fields), [request.body]),
            FAIL: self.fail, CRASH: self.crash, LATER: self.wait, SILENT: lambda peer, request: None,
            LARGE: lambda peer, request: Reply(0, {}, [memoryview(bytes(1 << 20))] * 4),
        }  # fmt: skip
        self.service = RemotingService(handles, self.closed.append)

    def fail(self, peer: Peer, request: Command) -> Outcome:
        raise TopicNotFound("no topic T")

    def crash(self, peer: Peer, request: Command) -> Outcome:
        raise ZeroDivisionError("secret")

    def wait(self, peer: Peer, request: Command) -> Outcome:
        self.peers.append(peer)
        self.later.append(Deferred())
        return self.later[-1]

    def note_end(self, code: int, answered: int, deferred: bool, seconds: float, count: int) -> None:
        assert seconds >= 0
        self.ended += [(code, answered, deferred)] * count


class Client:
    """A client over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = FrameReader()
        self.commands: list[Command] = []

    def send(self, code: int, opaque: int = 1, body: bytes = b"", flag: int = 0, **fields: str) -> None:
        self.writer.write(frame(code, opaque, fields, body, flag))

    async def read(self) -> Command:
        while not self.commands:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 10)
            if not data:
                raise EOFError
            self.commands += self.frames.feed(data)
        return self.commands.pop(0)

    async def ended(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(), 10) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def served(tls: TlsSettings | None = None) -> AsyncIterator[tuple[NativeServer, Service]]:
    service = Service()
    server = await serve(
        [], host="127.0.0.1", port=0, tls=tls, remoting=service.service, on_request_end=service.note_end
    )
    try:
        yield server, service
    finally:
        await server.stop(0.1)


async def connect(server: NativeServer, tls: ssl.SSLContext | None = None) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", server.port, ssl=tls))


def handled_at_least(service: Service, count: int) -> bool:
    return len(service.ended) >= count


async def test_6_1_12_what_is_oneway_is_not_answered_and_all_else_is() -> None:
    async with served() as (server, service):
        client = await connect(server)
        client.send(ECHO, 1, flag=2)
        client.send(FAIL, 2, flag=2)
        client.send(99, 3, flag=2)
        client.send(SILENT, 4)
        client.send(ECHO, 5, b"body", a="b")
        client.send(FAIL, 6)
        client.send(CRASH, 7)
        client.send(99, 8)
        answers = [await client.read() for _ in range(4)]
        assert [(each.opaque, each.code, each.flag) for each in answers] == [
            (5, 0, 1), (6, 17, 1), (7, 1, 1), (8, 3, 1),
        ]  # fmt: skip
        assert answers[0].fields == {"a": "b"} and answers[0].body == b"body"
        assert answers[0].version == 399 and answers[0].language == "JAVA"
        assert answers[1].remark == "no topic T" and "secret" not in (answers[2].remark or "")
        assert (-1, 3, False) in service.ended and (FAIL, 17, False) in service.ended


async def test_6_1_53_frames_split_at_every_byte_and_many_in_a_segment() -> None:
    async with served() as (server, _):
        whole = frame(ECHO, 1, {"a": "b"}, b"body") + frame(ECHO, 2, {}, b"")
        client = await connect(server)
        for at in range(1, len(whole)):
            client.writer.write(whole[:at])
            await client.writer.drain()
            await asyncio.sleep(0)
            client.writer.write(whole[at:])
            assert [(await client.read()).opaque for _ in range(2)] == [1, 2]
        client.writer.write(b"".join(frame(ECHO, number, {}, b"x") for number in range(1000)))
        assert [(await client.read()).opaque for _ in range(1000)] == list(range(1000))


async def test_answers_come_in_the_order_in_which_they_are_ready() -> None:
    async with served() as (server, service):
        client = await connect(server)
        for opaque in (1, 2):
            client.send(LATER, opaque)
        client.send(ECHO, 3)
        assert (await client.read()).opaque == 3
        service.later[1].complete(Reply(0, {"x": "2"}))
        assert (await client.read()).opaque == 2
        service.later[0].fail(TopicNotFound("gone"))
        answer = await client.read()
        assert (answer.opaque, answer.code) == (1, 17)
        assert (LATER, 0, True) in service.ended


async def test_what_waits_is_cancelled_with_its_connection() -> None:
    async with served() as (server, service):
        client = await connect(server)
        client.send(LATER)
        await eventually(lambda: service.later)
        client.writer.transport.abort()
        await eventually(lambda: service.closed)
        assert service.later[0].cancelled and service.closed == service.peers
        assert not server.connections and not server.budget.holders


async def test_requests_of_the_server_are_matched_by_their_numbers() -> None:
    async with served() as (server, service):
        client = await connect(server)
        client.send(LATER, 1)
        await eventually(lambda: service.peers)
        (peer,) = service.peers
        answer = peer.ask(307, {"a": "b"}, b"x", 5.0)
        assert peer.push(40, {"consumerGroup": "g"})
        asked, pushed = await client.read(), await client.read()
        assert (asked.code, asked.flag, asked.fields, asked.body) == (307, 0, {"a": "b"}, b"x")
        assert (pushed.code, pushed.flag) == (40, 2)
        client.send(0, 12345, b"nobody asked", flag=1)  # dropped
        client.send(0, asked.opaque, b"found", flag=1)
        await eventually(lambda: answer.done)
        assert answer.result is not None and answer.result.body == b"found"
        late = peer.ask(307, {}, b"", 0.05)
        await eventually(lambda: late.done)
        assert isinstance(late.error, RequestTimeout)
        waiting = [peer.ask(307, {}, b"", 5.0) for _ in range(ASKED_MAX)]
        with pytest.raises(Throttled):
            peer.ask(307, {}, b"", 5.0)
        client.writer.close()
        await eventually(lambda: waiting[-1].done)
        assert all(isinstance(each.error, ConnectionClosed) for each in waiting)
        assert not peer.push(40, {})
        with pytest.raises(ConnectionClosed):
            peer.ask(307, {}, b"", 5.0)


@pytest.mark.parametrize("name", HOSTILE_FRAMES)
async def test_6_1_54_odd_frames_end_their_connection_and_no_other(name: str) -> None:
    async with served() as (server, _):
        other, client = await connect(server), await connect(server)
        client.send(ECHO, 1)
        client.writer.write(HOSTILE_FRAMES[name])
        assert (await client.read()).opaque == 1
        assert await client.ended()
        other.send(ECHO, 2)
        assert (await other.read()).opaque == 2


async def test_6_1_54_random_bytes_do_no_harm() -> None:
    rng = random.Random(4)
    async with served() as (server, _):
        other = await connect(server)
        for _ in range(200):
            client = await connect(server)
            data = bytearray(frame(ECHO, 1, {"a": "b"}, b"x" * rng.randrange(50)))
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(1, len(data))] = rng.randrange(256)
            client.writer.write(bytes(data))
            client.writer.write_eof()
            await client.ended()
            client.writer.close()
        other.send(ECHO, 2)
        assert (await other.read()).opaque == 2
        await eventually(lambda: len(server.connections) == 1)


async def test_6_1_55_who_does_not_read_is_not_read_from() -> None:
    async with served() as (server, service):
        client, other = await connect(server), await connect(server)
        client.send(LATER)
        await eventually(lambda: service.peers)
        (peer,) = service.peers
        assert isinstance(peer, RemotingConnection)
        opaque = 1
        while not peer.paused:
            opaque += 1
            client.send(LARGE, opaque)
            await eventually(functools.partial(handled_at_least, service, opaque - 1))
        handled = len(service.ended)
        assert peer.unread < WRITE_BYTES_HIGH + 2 * (4 << 20)
        for more in range(50):
            client.send(LARGE, opaque + 1 + more)
        other.send(ECHO, 1)
        assert (await other.read()).opaque == 1
        assert [code for code, _, _ in service.ended[handled:]] == [ECHO]
        answers = [await client.read() for _ in range(handled + 50)]
        assert [each.opaque for each in answers] == list(range(2, opaque + 51))


async def test_6_1_55_a_peer_with_much_unread_is_overloaded() -> None:
    async with served() as (server, service):
        client = await connect(server)
        client.send(LATER)
        await eventually(lambda: service.peers)
        (peer,) = service.peers
        client.writer.write(b"".join(frame(LARGE, number, {}) for number in range(12)))
        await eventually(lambda: peer.overloaded)
        assert not peer.push(40, {})
        for _ in range(12):
            await client.read()
        await eventually(lambda: not peer.overloaded)
        assert peer.push(40, {})


async def test_6_1_32_who_says_nothing_or_nothing_more_is_closed() -> None:
    async with served() as (server, _):
        silent, idle, busy = await connect(server), await connect(server), await connect(server)
        silent.writer.write(b"\x00")
        for client in (idle, busy):
            client.send(ECHO, 1)
            await client.read()
        await eventually(lambda: len(server.connections) == 3)
        found = {each.peer: each for each in server.connections}
        now = server.loop.time()

        def connection(client: Client) -> RemotingConnection:
            host, port = client.writer.get_extra_info("sockname")
            each = found[f"{host}:{port}"]
            assert isinstance(each, RemotingConnection)
            return each

        connection(silent).check_timeouts(now + protocol_detection.HANDSHAKE_S + 1)
        connection(idle).check_timeouts(now + remoting.IDLE_S + 1)
        connection(busy).check_timeouts(now + remoting.IDLE_S - 1)
        assert await silent.ended() and await idle.ended()
        busy.send(ECHO, 2)
        assert (await busy.read()).opaque == 2


@pytest.mark.parametrize("alpn", [None, ["h2"]])
async def test_6_1_1_under_tls_without_alpn_the_first_byte_decides(
    tmp_path: Path, certificate: Path, alpn: list[str] | None
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(alpn)
    async with served(TlsSettings(certificate=str(certificate), key=str(certificate))) as (server, _):
        client = await connect(server, context)
        if alpn:
            assert struct.unpack(">I", b"\0" + (await client.reader.read(9))[:3])  # SETTINGS come unasked
            return
        client.send(ECHO, 1, b"x" * 100_000)
        assert len((await client.read()).body) == 100_000
        junk = await connect(server, context)
        junk.writer.write(b"\x7fjunk")
        assert await junk.ended()


async def test_a_server_without_the_protocol_closes_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    server = await serve([], host="127.0.0.1", port=0)
    client = await connect(server)
    client.send(ECHO)
    assert await client.ended()
    assert "remoting protocol" in caplog.text
    await server.stop(0.1)


async def test_a_replaced_service_serves_the_next_request() -> None:
    async with served() as (server, _):
        client = await connect(server)
        client.send(ECHO, 1)
        await client.read()
        server.replace([], RemotingService({ECHO: lambda peer, request: Reply(14, remark="no role")}))
        client.send(ECHO, 2)
        assert (await client.read()).code == 14
